package dev.spry.core;

/** Directions were asked for with arguments outside their range. */
public class DirectionException extends SpryException {
    private static final long serialVersionUID = 1L;

    public DirectionException(String message) {
        super(message);
    }
}
