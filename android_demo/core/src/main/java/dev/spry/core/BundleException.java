package dev.spry.core;

/** A bundle cannot be used as it is. */
public class BundleException extends SpryException {
    private static final long serialVersionUID = 1L;

    public BundleException(String message) {
        super(message);
    }
}
