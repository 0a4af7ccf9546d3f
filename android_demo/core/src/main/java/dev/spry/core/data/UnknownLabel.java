package dev.spry.core.data;

/** A row's label is none of the job's. */
final class UnknownLabel extends BadRow {
    private static final long serialVersionUID = 1L;

    final String label;

    UnknownLabel(String label, String problem) {
        super(problem);
        this.label = label;
    }
}
