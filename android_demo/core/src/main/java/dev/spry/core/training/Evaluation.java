package dev.spry.core.training;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;

/** How many predictions there are on some examples, and how many are right by the global and by the personal weights. */
public final class Evaluation {
    /** A prediction is an example's class, or for a language model the next token. */
    public final int predictions;
    /** By the global weights, then by the personal ones. */
    public final int[] right;

    private Evaluation(int predictions, int[] right) {
        this.predictions = predictions;
        this.right = right;
    }

    /** Where nothing is held back. */
    public static Evaluation none() {
        return new Evaluation(0, new int[2]);
    }

    /** Runs over all examples once for each of the weights. Answers to questions are not judged here. */
    public static Evaluation of(
            Passes passes, Rows rows, String task, Map<String, Tensor> global, Map<String, Tensor> personal)
            throws IOException {
        if (task.equals("qa")) {
            return none();
        }
        int total = 0;
        int[] right = new int[2];
        for (int start = 0; start < rows.count(); start += rows.batch()) {
            int[] places = new int[Math.min(rows.batch(), rows.count() - start)];
            for (int i = 0; i < places.length; i++) {
                places[i] = start + i;
            }
            Batch batch = rows.encode(0, places);
            int[] wanted = wanted(batch, task);
            for (int label : wanted) {
                total += label == Manifest.IGNORED ? 0 : 1;
            }
            right[0] += hits(passes.logits(batch, global), wanted);
            right[1] += hits(passes.logits(batch, personal), wanted);
        }
        return new Evaluation(total, right);
    }

    /** What each row of the logits should say: the class of an example, or the token after each token. */
    private static int[] wanted(Batch batch, String task) {
        long[] labels = batch.labels.longs();
        boolean tokens = task.equals("causal-lm");
        int width = tokens ? batch.labels.shape()[1] : 1;
        int[] found = new int[batch.examples * width];
        Arrays.fill(found, Manifest.IGNORED);
        for (int i = 0; i < found.length; i++) {
            boolean last = tokens && i % width == width - 1;
            if (!last) {
                found[i] = (int) labels[tokens ? i + 1 : i];
            }
        }
        return found;
    }

    private static int hits(List<Tensor> logits, int[] wanted) {
        int hits = 0;
        int row = 0;
        for (Tensor part : logits) {
            int[] shape = part.shape();
            int classes = shape[shape.length - 1];
            float[] values = part.floats();
            for (int start = 0; start < values.length; start += classes, row++) {
                boolean counts = wanted[row] != Manifest.IGNORED;
                hits += counts && largest(values, start, classes) == wanted[row] ? 1 : 0;
            }
        }
        return hits;
    }

    private static int largest(float[] values, int start, int count) {
        int best = 0;
        for (int i = 1; i < count; i++) {
            best = values[start + i] > values[start + best] ? i : best;
        }
        return best;
    }
}
