package dev.spry.core;

/** This client was told to stop: by its user, or by a system that wants the device for something else. No error. */
public class Stopped extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public Stopped() {
        super("stopped; what was trained is kept, and goes on with the next start");
    }
}
