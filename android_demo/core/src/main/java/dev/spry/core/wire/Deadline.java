package dev.spry.core.wire;

import java.io.Closeable;
import java.net.HttpURLConnection;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

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

    private final long until;
    private final BooleanSupplier closed;
    private final ScheduledFuture<?> watch;
    private volatile boolean passed;

    /** `closed` cuts it too: whoever closes a server may come before the connection is there to be cut. */
    Deadline(HttpURLConnection connection, double seconds, BooleanSupplier closed) {
        this.closed = closed;
        until = System.nanoTime() + (long) (seconds * 1e9);
        long first = Math.min(1000, (long) (seconds * 1000));
        // again and again: a request that failed once may be repeated by the connection itself
        watch = CLOCK.scheduleWithFixedDelay(() -> look(connection), first, 1000, TimeUnit.MILLISECONDS);
    }

    private void look(HttpURLConnection connection) {
        passed |= System.nanoTime() >= until;
        if (passed || closed.getAsBoolean()) {
            connection.disconnect();
        }
    }

    boolean passed() {
        return passed;
    }

    @Override
    public void close() {
        watch.cancel(false);
    }
}
