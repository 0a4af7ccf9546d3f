package dev.spry.core;

/** What a run came to. */
public final class Done {
    public final int rounds;
    public final int failures;
    /** Results that came when their rounds were over. */
    public final int late;
    /** Whether somebody ended it. */
    public final boolean stopped;

    Done(int rounds, int failures, int late, boolean stopped) {
        this.rounds = rounds;
        this.failures = failures;
        this.late = late;
        this.stopped = stopped;
    }
}
