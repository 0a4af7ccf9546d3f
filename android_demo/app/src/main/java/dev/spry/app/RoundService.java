package dev.spry.app;

import java.io.IOException;
import java.util.concurrent.atomic.AtomicBoolean;

import android.app.job.JobParameters;
import android.app.job.JobService;
import android.os.SystemClock;
import android.util.Log;
import dev.spry.core.Client;
import dev.spry.core.Event;
import dev.spry.core.SpryException;
import dev.spry.core.Stopped;
import dev.spry.core.UnauthorizedException;

/**
 * Takes part in rounds while the system lets it.
 *
 * <p>Where a round stands is kept by the client, so that the system may end this at any moment: the next run goes on.
 */
public final class RoundService extends JobService {
    /** Seconds; a longer wait is left to the scheduler. */
    private static final double LONGEST_REST = 120;
    /** Milliseconds. */
    private static final long BETWEEN_SHOWN = 1000;
    /** One run in this process, whatever woke it. */
    private static final AtomicBoolean BUSY = new AtomicBoolean();

    private Client client;
    private long shown;
    private boolean stopping;

    static boolean isBusy() {
        return BUSY.get();
    }

    @Override
    public boolean onStartJob(JobParameters parameters) {
        if (!new Settings(this).takesPart() || !BUSY.compareAndSet(false, true)) {
            return false;
        }
        synchronized (this) {
            stopping = false;
        }
        new Thread(() -> run(parameters), "rounds").start();
        return true;
    }

    @Override
    public boolean onStopJob(JobParameters parameters) {
        Client running;
        synchronized (this) {
            stopping = true;
            running = client;
        }
        if (running != null) {
            running.stop();
        }
        return new Settings(this).takesPart();
    }

    private void run(JobParameters parameters) {
        Journal journal = new Journal(this);
        Notices notices = new Notices(this);
        try {
            journal.begin();
            takePart(journal, notices);
        } catch (UnauthorizedException error) {
            new Settings(this).refused();
            journal.problem(error.getMessage());
        } catch (Stopped stop) {
            Log.i("spry", "the system ended the run before it began");
        } catch (SpryException error) {
            journal.problem(error.getMessage());
        } catch (IOException error) {
            journal.problem(getString(R.string.no_storage, error.getMessage()));
        } catch (LinkageError error) {
            journal.problem(getString(R.string.no_runtime));
        } catch (RuntimeException error) {
            Log.e("spry", "a defect", error);
            journal.problem(getString(R.string.defect, String.valueOf(error.getMessage())));
        } finally {
            BUSY.set(false);
            journal.end();
            notices.clear();
            jobFinished(parameters, false);
        }
    }

    private void takePart(Journal journal, Notices notices) throws IOException {
        Client opened = new Settings(this).client().data(new LocalData(this).source()).longestWait(LONGEST_REST)
                .tell(event -> {
                    if (isWorthShowing(event)) {
                        journal.tell(event);
                        notices.show(event);
                    }
                }).open();
        synchronized (this) {
            if (stopping) {
                throw new Stopped();
            }
            client = opened;
        }
        try {
            opened.run(Client.ENDLESS);
        } finally {
            synchronized (this) {
                client = null;
            }
        }
    }

    /** Steps and downloads tell more than a screen can show, and what is shown is written to flash. */
    private boolean isWorthShowing(Event event) {
        if (!event.kind.equals("progress") && !event.kind.equals("download")) {
            return true;
        }
        long now = SystemClock.elapsedRealtime();
        boolean due = now - shown >= BETWEEN_SHOWN;
        shown = due ? now : shown;
        return due;
    }
}
