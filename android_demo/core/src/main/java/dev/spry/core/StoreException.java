package dev.spry.core;

/** What a device keeps cannot be used. */
public class StoreException extends SpryException {
    private static final long serialVersionUID = 1;

    public StoreException(String message) {
        super(message);
    }
}
