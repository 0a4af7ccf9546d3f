package dev.spry.core.training;

import java.io.IOException;

import dev.spry.core.data.Encoded;
import dev.spry.core.data.Encoder;
import dev.spry.core.data.Examples;

/** Texts of this device, tokenized when a batch wants them. */
public final class LocalRows implements Rows {
    private final Examples examples;
    private final Encoder encoder;

    public LocalRows(Examples examples, Encoder encoder) {
        this.examples = examples;
        this.encoder = encoder;
    }

    @Override
    public int count() {
        return examples.size();
    }

    @Override
    public int batch() {
        return encoder.batch;
    }

    @Override
    public Batch encode(int number, int[] places) throws IOException {
        Encoded encoded = encoder.encode(examples.get(places, 0, places.length));
        return new Batch(number, encoded.tokens, encoded.labels, encoded.examples());
    }
}
