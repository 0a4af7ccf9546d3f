package dev.spry.core;

import java.util.Locale;
import java.util.concurrent.ThreadLocalRandom;

/** A client's waits between one look at the server and the next; `stop` ends them, from any thread. */
final class Waits {
    /** A wait of this length is worth giving the runtime's memory back. */
    private static final double IDLE_SECONDS = 5;
    private static final double SHORTEST = 0.2;
    private static final double FAILURE = 5;
    private static final double LONGEST_FAILURE = 3600;
    /** After a result that a round was over for; the server says who has to wait longer. */
    private static final double LATE = 1;
    /** After the user's hours have begun; so many seconds spread a fleet with the same hours. */
    static final double MOST_LATE = 60;

    private final Pause pause;
    private final double longest;
    private final Tell tell;
    private final Runnable idle;
    private String told = "";
    /** Of tasks, one after the other: they lengthen the waits. */
    private int failures;
    private volatile boolean stopped;

    /** How to wait, or null for a way that `stop` ends, and a wait above the longest; what to do before a long one. */
    Waits(Pause chosen, double longest, Tell tell, Runnable idle) {
        this.longest = longest;
        pause = chosen == null ? this::rest : chosen;
        this.tell = tell;
        this.idle = idle;
    }

    void await(double asked, String reason) {
        await(asked, reason, Double.POSITIVE_INFINITY);
    }

    /**
     * Wait about as long as asked; devices that were told the same must not come back together. It is never longer than
     * asked by more than the given seconds: a window that opens must not be missed.
     */
    void await(double asked, String reason, double atMostLate) {
        double least = Math.max(asked, reason.isEmpty() ? 0 : SHORTEST);
        double seconds = Math.min(least * ThreadLocalRandom.current().nextDouble(0.9, 1.2), least + atMostLate);
        if (!reason.isEmpty() && !reason.equals(told)) {
            String message = String.format(Locale.ROOT, "%s; next look in about %s", reason, lasting(seconds));
            tell.tell(Event.of("waiting", message).with("seconds", Math.round(seconds)));
        }
        told = reason;
        if (seconds >= IDLE_SECONDS) {
            idle.run();
        }
        checkStopped();
        if (seconds > 0) {
            pause(seconds);
        }
    }

    /** A duration as a person says it: `45 s`, `25 min`, `3 h 20 min`. */
    static String lasting(double seconds) {
        if (seconds < 2 * 60) {
            return String.format(Locale.ROOT, "%.0f s", seconds);
        }
        long minutes = Math.round(seconds / 60);
        return minutes < 60 ? minutes + " min" : minutes / 60 + " h " + minutes % 60 + " min";
    }

    /** The longer the more tasks have failed since one succeeded. */
    void afterFailure() {
        failures++;
        await(Math.min(FAILURE * Math.pow(2, Math.min(failures - 1, 12)), LONGEST_FAILURE), "");
    }

    /** The next round may be open already. */
    void afterLate() {
        await(LATE, "");
    }

    void afterSuccess(double asked) {
        failures = 0;
        await(asked, "");
    }

    /** What was waited for has come: the same reason is told again. */
    void over() {
        told = "";
    }

    void pause(double seconds) {
        pause.pause(seconds);
    }

    synchronized void stop() {
        stopped = true;
        notifyAll();
    }

    void checkStopped() {
        if (stopped) {
            throw new Stopped();
        }
    }

    private synchronized void rest(double seconds) {
        if (seconds > longest) {
            throw new Stopped();
        }
        long until = System.nanoTime() + (long) (seconds * 1e9);
        try {
            for (long left = until - System.nanoTime(); left > 0 && !stopped; left = until - System.nanoTime()) {
                wait(left / 1_000_000 + 1);
            }
        } catch (InterruptedException error) {
            throw new Stopped();
        }
        checkStopped();
    }
}
