package dev.spry.core;

/** A runtime does not compute here what it should. */
public class WrongResultsException extends SpryException {
    private static final long serialVersionUID = 1L;

    public WrongResultsException(String message) {
        super(message);
    }
}
