package dev.spry.core.wire;

import java.io.Closeable;
import java.net.HttpURLConnection;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * Cuts a connection whose answer does not begin in time. The connection's own limit counts from byte to byte only: a
 * server that sends a byte now and then, or takes one, would hold a device for ever.
 */
final class Deadline implements Closeable {
    private static final ScheduledExecutorService CLOCK = Executors.newSingleThreadScheduledExecutor(work -> {
        Thread thread = new Thread(work, "spry deadlines");
        thread.setDaemon(true);
        return thread;
    });

    private final ScheduledFuture<?> cut;
    private volatile boolean passed;

    Deadline(HttpURLConnection connection, double seconds) {
        // again and again: a request that failed once may be repeated by the connection itself
        cut = CLOCK.scheduleWithFixedDelay(() -> {
            passed = true;
            connection.disconnect();
        }, (long) (seconds * 1000), 1000, TimeUnit.MILLISECONDS);
    }

    boolean passed() {
        return passed;
    }

    @Override
    public void close() {
        cut.cancel(false);
    }
}
