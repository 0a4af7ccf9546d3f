package dev.spry.core.training;

import java.io.IOException;

/** A device's examples, encoded when a batch wants them. */
public interface Rows {
    /** How many examples there are. */
    int count();

    /** How many of them a batch takes. */
    int batch();

    /** The examples at these places, at most a batch of them, as batch `number` of the round. */
    Batch encode(int number, int[] places) throws IOException;
}
