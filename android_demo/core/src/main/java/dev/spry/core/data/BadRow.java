package dev.spry.core.data;

/** Why a row cannot be used. */
class BadRow extends Exception {
    private static final long serialVersionUID = 1L;

    BadRow(String problem) {
        super(problem);
    }
}
