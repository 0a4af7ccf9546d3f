package dev.spry.core.training;

import java.io.IOException;
import java.util.List;

import dev.spry.core.data.Encoded;
import dev.spry.core.data.Encoder;
import dev.spry.core.data.Example;
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
        return new Chosen(number, examples.get(places, 0, places.length)).batch;
    }

    /** The examples from `start` up to `end`, at most a batch of them. */
    Chosen chosen(int start, int end) throws IOException {
        int[] places = new int[end - start];
        for (int i = 0; i < places.length; i++) {
            places[i] = start + i;
        }
        return chosen(places);
    }

    /** The examples at these places, at most a batch of them. */
    Chosen chosen(int[] places) throws IOException {
        return new Chosen(0, examples.get(places, 0, places.length));
    }

    /** Some examples, and what programs take of them. */
    final class Chosen {
        final List<Example> examples;
        final Encoded encoded;
        final Batch batch;

        private Chosen(int number, List<Example> examples) {
            this.examples = examples;
            encoded = encoder.encode(examples);
            batch = new Batch(number, encoded.tokens, encoded.labels, encoded.examples());
        }
    }
}
