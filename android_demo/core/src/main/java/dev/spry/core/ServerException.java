package dev.spry.core;

/** The server refused a request. */
public class ServerException extends SpryException {
    private static final long serialVersionUID = 1;

    /** One of the wire's refusal codes, or empty. */
    public final String code;
    /** Of HTTP; 0 where there was no answer. */
    public final int status;
    /** The seconds it asked to wait; NaN where it did not. */
    public final double retryAfter;

    public ServerException(String message, String code, int status, double retryAfter) {
        super(message);
        this.code = code;
        this.status = status;
        this.retryAfter = retryAfter;
    }

    public ServerException(String message, String code) {
        this(message, code, 0, Double.NaN);
    }
}
