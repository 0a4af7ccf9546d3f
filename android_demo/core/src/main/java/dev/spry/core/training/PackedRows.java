package dev.spry.core.training;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeSet;

import dev.spry.core.data.Encoded;
import dev.spry.core.data.Encoder;
import dev.spry.core.data.Example;
import dev.spry.core.data.Examples;
import dev.spry.core.wire.TrainingSettings;

/**
 * A language model's texts in as few sequences as it takes when each goes, the longest first, where it fits best.
 *
 * <p>A sequence is then what a batch counts as an example. All texts are tokenized once for their lengths, and again when
 * a batch wants them.
 */
public final class PackedRows implements Rows {
    private final Examples examples;
    private final Encoder encoder;
    private final int[][] groups;

    PackedRows(Examples examples, Encoder encoder) throws IOException {
        this.examples = examples;
        this.encoder = encoder;
        int[] lengths = new int[examples.size()];
        for (int i = 0; i < lengths.length; i++) {
            lengths[i] = encoder.count(examples.get(i));
        }
        groups = fitted(lengths, encoder.length);
    }

    /** What a job's steps take as examples. */
    public static Rows taken(Examples examples, Encoder encoder, TrainingSettings training) throws IOException {
        return training.pack ? new PackedRows(examples, encoder) : new LocalRows(examples, encoder);
    }

    @Override
    public int count() {
        return groups.length;
    }

    @Override
    public int batch() {
        return encoder.batch;
    }

    @Override
    public Batch encode(int number, int[] places) throws IOException {
        List<List<Example>> sequences = new ArrayList<>();
        for (int place : places) {
            sequences.add(examples.get(groups[place], 0, groups[place].length));
        }
        Encoded encoded = encoder.together(sequences);
        return new Batch(number, encoded.tokens, encoded.labels, encoded.examples());
    }

    /** Groups of numbers whose lengths together are no more than there is room for. */
    static int[][] fitted(int[] lengths, int room) {
        Integer[] order = new Integer[lengths.length];
        for (int i = 0; i < order.length; i++) {
            order[i] = i;
        }
        Arrays.sort(order, (one, other) -> lengths[other] - lengths[one]); // stable
        List<List<Integer>> groups = new ArrayList<>();
        TreeSet<Long> left = new TreeSet<>(); // room in each group, before its number
        for (int number : order) {
            Long tightest = left.ceiling((long) lengths[number] << 32);
            if (tightest == null) {
                tightest = (long) room << 32 | groups.size();
                groups.add(new ArrayList<>());
            }
            left.remove(tightest);
            groups.get(tightest.intValue()).add(number);
            left.add(tightest - ((long) lengths[number] << 32));
        }
        int[][] found = new int[groups.size()][];
        for (int i = 0; i < found.length; i++) {
            found[i] = new int[groups.get(i).size()];
            for (int j = 0; j < found[i].length; j++) {
                found[i][j] = groups.get(i).get(j);
            }
        }
        return found;
    }
}
