package dev.spry.core;

/** The server gave no answer. */
public class UnreachableException extends ServerException {
    private static final long serialVersionUID = 1;

    public UnreachableException(String message) {
        super(message, "");
    }
}
