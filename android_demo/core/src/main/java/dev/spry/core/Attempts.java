package dev.spry.core;

import java.io.IOException;

import dev.spry.core.store.Job;
import dev.spry.core.store.JobStore;
import dev.spry.core.store.Store;
import dev.spry.core.wire.Receipt;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.Task;

/** A device's tasks: each is done, or given back with the reason, and the device goes on. */
final class Attempts {
    private final Server server;
    private final Store store;
    private final OwnData data;
    private final Workshop workshop;
    private final CheckIns checkIns;
    private final Waits waits;
    private final Tell tell;
    private int rounds;
    private int failures;
    private int late;

    Attempts(
            Server server, Store store, OwnData data, Workshop workshop, CheckIns checkIns, Waits waits, Tell tell) {
        this.server = server;
        this.store = store;
        this.data = data;
        this.workshop = workshop;
        this.checkIns = checkIns;
        this.waits = waits;
        this.tell = tell;
    }

    /** Those of another run are counted from here on. */
    void countAnew() {
        rounds = 0;
        failures = 0;
        late = 0;
    }

    /** What they came to; whether somebody ended the run. */
    Done done(boolean stopped) {
        return new Done(rounds, failures, late, stopped);
    }

    /** Of a turn that could take none on. */
    void countFailure() {
        failures++;
    }

    int rounds() {
        return rounds;
    }

    /** Whether none was taken on. */
    boolean areNone() {
        return rounds + failures + late == 0;
    }

    /** One that has come. */
    void take(Task task) {
        JobStore job = store.job(task.job);
        waits.over();
        String message = "round " + task.round + " of " + task.jobName + ": " + task.units.length + " units";
        tell.tell(Event.of("task", message).with("task", task.id).with("job", task.jobName)
                .with("round", task.round).with("units", task.units.length));
        guarded(job, task, () -> takePart(task, job));
    }

    /** A result that was finished before this process started; the server may have it already. */
    void sendLeftOver() {
        for (JobStore job : store.jobs()) {
            Task task = job.task();
            if (task != null && job.update() != null) {
                guarded(job, task, () -> send(task, job));
            }
        }
    }

    // --- done ---

    private Receipt takePart(Task given, JobStore job) throws IOException {
        if (checkIns.onlySums && given.sum == null) {
            throw new TrainingException(
                    given.jobName + " shows updates to its server, and this device is to add to sums alone");
        }
        if (given.sum != null) {
            Adding.requireKnown(given.sum.format);
        }
        Task task = job.begin(given);
        if (job.update() == null) {
            Workbench open = workshop.benchFor(task, checkIns.conditions.memory());
            job.saveAbout(new Job(task));
            OwnData.Parts parts = data.of(open.bundle);
            Round round = new Round(task, server, job, open, tell, waits::checkStopped);
            Double found = round.run(parts.training, parts.heldBack, checkIns.conditions);
            checkIns.stepSeconds = found == null ? checkIns.stepSeconds : found;
        }
        if (task.training.mode.equals("iteration")) {
            job.finish();
            return new Receipt(0, false);
        }
        return send(task, job);
    }

    private Receipt send(Task task, JobStore job) {
        Receipt receipt = task.sum == null ? server.sendUpdate(task.id, job.update()) : add(task, job);
        job.finish();
        String again = receipt.repeated ? " (it had it already)" : "";
        tell.tell(Event.of("uploaded", "the server has the result of round " + task.round + again)
                .with("task", task.id).with("round", task.round).with("repeated", receipt.repeated));
        return receipt;
    }

    /** The result goes into a sum. */
    private Receipt add(Task task, JobStore job) {
        if (!checkIns.signs()) {
            throw new TrainingException("this device has no key of its own to add its update with: enrol again");
        }
        workshop.close(); // others may train for long
        return new Adding(task, server, job, store.key(), waits::pause, tell).run();
    }

    // --- or ended early ---

    private interface Work {
        Receipt done() throws IOException;
    }

    /** Do a task; what ends it early is told, to the server too, and the client goes on. */
    private void guarded(JobStore job, Task task, Work work) {
        Receipt receipt;
        try {
            receipt = work.done();
        } catch (UnauthorizedException | UnreachableException | Stopped error) {
            throw error; // the task and its result stay for another run
        } catch (ServerException error) {
            job.finish();
            if (error.code.equals("late")) { // others were faster, or a time was up
                late++;
                tell.tell(Event.of("late", "round " + task.round + ": " + error.getMessage()).with("task", task.id));
                waits.afterLate();
                return;
            }
            failures++;
            tell.tell(Event.of("refused", "round " + task.round + ": " + error.getMessage())
                    .with("task", task.id).with("code", error.code));
            waits.afterFailure();
            return;
        } catch (IOException | RuntimeException | OutOfMemoryError | StackOverflowError error) {
            waits.checkStopped(); // a runtime that was interrupted may say so in its own way
            giveBack(job, task, reason(error));
            failures++;
            if (error instanceof StoreException || error instanceof WrongResultsException) {
                throw (SpryException) error; // the next task would find the disk as full, the runtime as wrong
            }
            waits.afterFailure();
            return;
        } catch (LinkageError error) { // this device has no such runtime, whatever the next task is
            giveBack(job, task, "the runtime " + task.runtime + " cannot be loaded: " + error.getMessage());
            throw error;
        }
        rounds++;
        waits.afterSuccess(receipt.wait);
    }

    /** Why, as an operator reads it; what is no message of ours is a bundle's doing, or a defect. */
    private static String reason(Throwable error) {
        if (error instanceof OutOfMemoryError) {
            return "out of memory";
        }
        boolean written = error instanceof SpryException || error instanceof IOException;
        return written ? String.valueOf(error.getMessage()) : String.valueOf(error);
    }

    private void giveBack(JobStore job, Task task, String reason) {
        job.finish();
        tell.tell(Event.of("failed", "round " + task.round + " of " + task.jobName + ": " + reason)
                .with("task", task.id));
        workshop.close();
        try {
            server.sendFailure(task.id, reason.isEmpty() ? "failed" : reason);
        } catch (UnauthorizedException | UnreachableException error) {
            throw error;
        } catch (ServerException error) { // it took too long, and the task is nobody's any more
            tell.tell(Event.of("refused", error.getMessage()).with("task", task.id).with("code", error.code));
        }
    }
}
