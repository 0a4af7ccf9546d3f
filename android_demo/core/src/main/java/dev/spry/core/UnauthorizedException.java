package dev.spry.core;

/** The server does not know this device, or no longer. */
public class UnauthorizedException extends ServerException {
    private static final long serialVersionUID = 1;

    public UnauthorizedException(String message, String code, double retryAfter) {
        super(message, code, 401, retryAfter);
    }
}
