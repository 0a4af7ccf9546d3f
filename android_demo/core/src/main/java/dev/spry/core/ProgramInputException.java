package dev.spry.core;

/** A program was given an input that does not fit its signature. */
public class ProgramInputException extends SpryException {
    private static final long serialVersionUID = 1L;

    public ProgramInputException(String message) {
        super(message);
    }
}
