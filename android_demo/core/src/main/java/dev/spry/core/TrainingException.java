package dev.spry.core;

/** A task cannot be run as it is set, or its numbers left the finite range. */
public class TrainingException extends SpryException {
    private static final long serialVersionUID = 1L;

    public TrainingException(String message) {
        super(message);
    }
}
