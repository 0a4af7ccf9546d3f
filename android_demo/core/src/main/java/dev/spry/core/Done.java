package dev.spry.core;

/** What a run came to. */
public final class Done {
    public final int rounds;
    public final int failures;
    /** Whether somebody ended it. */
    public final boolean stopped;

    Done(int rounds, int failures, boolean stopped) {
        this.rounds = rounds;
        this.failures = failures;
        this.stopped = stopped;
    }
}
