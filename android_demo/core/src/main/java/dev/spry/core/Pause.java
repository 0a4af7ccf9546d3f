package dev.spry.core;

/** Waits some seconds; an interrupt ends the wait with {@link Stopped}. */
public interface Pause {
    Pause SLEEP = seconds -> {
        try {
            Thread.sleep((long) (seconds * 1000));
        } catch (InterruptedException error) {
            throw new Stopped();
        }
    };

    void pause(double seconds);
}
