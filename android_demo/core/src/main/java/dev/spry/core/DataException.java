package dev.spry.core;

/** Rows of training data cannot be used. */
public class DataException extends SpryException {
    private static final long serialVersionUID = 1;

    public DataException(String message) {
        super(message);
    }
}
