package dev.spry.core;

/** Waits some seconds; an interrupt ends the wait. */
public interface Waits {
    Waits SLEEP = seconds -> Thread.sleep((long) (seconds * 1000));

    void pause(double seconds) throws InterruptedException;
}
