package dev.spry.core;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.data.Examples;
import dev.spry.core.data.Misfit;
import dev.spry.core.data.Source;

/** This device's data, read as the examples of a job. */
final class OwnData {
    private final Source source;
    private final boolean skipBadRows;
    private final double holdout;
    private final Tell tell;
    private Parts parts;

    OwnData(Source source, boolean skipBadRows, double holdout, Tell tell) {
        if (!(holdout >= 0 && holdout < 1)) {
            throw new DataException("the share held back must be from 0 to less than 1, got " + holdout);
        }
        this.source = source;
        this.skipBadRows = skipBadRows;
        this.holdout = holdout;
        this.tell = tell;
    }

    /** What is trained on, and what is held back for evaluation. */
    static final class Parts {
        final Examples training;
        final Examples heldBack;
        private final Object of;

        private Parts(Object of, Examples[] parts) {
            this.of = of;
            training = parts[0];
            heldBack = parts[1];
        }
    }

    /** How many rows there are; a device without any cannot take part. */
    int count() throws IOException {
        if (source == null) {
            throw new DataException("there is no data to train on: choose a file with examples");
        }
        int found = Examples.count(source, skipBadRows);
        if (found == 0) {
            throw new DataException(source.name() + " has no example; it is empty");
        }
        return found;
    }

    /** Another value when the rows may have changed. */
    Object stamp() {
        return source.stamp();
    }

    /** How many rows are no examples of a job, and why; empty where it can train on these rows. */
    String misfit(String task, List<String> labels) throws IOException {
        return Misfit.of(source, task, labels, skipBadRows);
    }

    /** As a bundle's model wants them; read again when the file has changed. */
    Parts of(Bundle bundle) throws IOException {
        Object key = Arrays.asList(bundle.folder, source.stamp());
        if (parts == null || !parts.of.equals(key)) {
            Examples found = Examples.of(source, bundle, skipBadRows);
            if (found.skipped != null) {
                tell.tell(Event.of("warning", source.name() + ": rows left out: " + found.skipped));
            }
            parts = new Parts(key, found.split(holdout, 0));
        }
        return parts;
    }
}
