package dev.spry.core;

import dev.spry.core.wire.Bounds;

/**
 * Anything that somebody can put right: a message of one line that says what was expected, what came instead, and what
 * to do. Whatever else is thrown is a defect, or an IOException of the system.
 */
public class SpryException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public SpryException(String message) {
        super(Bounds.shown(message));
    }
}
