package dev.spry.core.training;

import java.io.IOException;
import java.util.Arrays;

import dev.spry.core.numbers.Philox;

/**
 * A round's batches: the same examples in the same order whenever they are drawn from the same seed.
 *
 * <p>Which examples stand together is drawn once for a round; a later pass visits the same batches in another order.
 * What was computed for a batch before the cut can so be kept for the next pass.
 */
public final class Batches {
    private final Rows rows;
    private final long seed;
    private final int[] order;

    public Batches(Rows rows, long seed) {
        this.rows = rows;
        this.seed = seed;
        order = shuffled(rows.count(), seed, 0);
    }

    /** Batches in a pass; the last may have fewer examples. */
    public int count() {
        return (rows.count() + rows.batch() - 1) / rows.batch();
    }

    /** The batch of a step of the round. */
    public Batch at(int step) throws IOException {
        int epoch = step / count();
        int position = step % count();
        int number = epoch == 0 ? position : shuffled(count(), seed, epoch)[position];
        int start = number * rows.batch();
        return rows.encode(number, Arrays.copyOfRange(order, start, Math.min(start + rows.batch(), order.length)));
    }

    /** The numbers below `count` in an order of this seed and pass: sorted by a hash of each. */
    static int[] shuffled(int count, long seed, int epoch) {
        long[] hashes = new long[count];
        Integer[] order = new Integer[count];
        int[] words = new int[4];
        for (int i = 0; i < count; i++) {
            Philox.words(i, epoch, 0, 0xFFFFFFFF, seed, words);
            hashes[i] = Integer.toUnsignedLong(words[0]) << 32 | Integer.toUnsignedLong(words[1]);
            order[i] = i;
        }
        Arrays.sort(order, (one, other) -> Long.compareUnsigned(hashes[one], hashes[other]));
        int[] found = new int[count];
        for (int i = 0; i < count; i++) {
            found[i] = order[i];
        }
        return found;
    }
}
