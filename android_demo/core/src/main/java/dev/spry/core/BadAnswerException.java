package dev.spry.core;

/** An answer that cannot be read. */
public class BadAnswerException extends ServerException {
    private static final long serialVersionUID = 1;

    public BadAnswerException(String message) {
        super(message, "", 200, Double.NaN);
    }
}
