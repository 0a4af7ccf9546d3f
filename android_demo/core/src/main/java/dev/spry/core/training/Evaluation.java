package dev.spry.core.training;

import java.io.IOException;
import java.util.Map;

import dev.spry.core.Logits;
import dev.spry.core.Tensor;

/** How many predictions there are on some examples, and how many are right by each of two sets of weights. */
public final class Evaluation {
    /** A prediction is an example's class, a question's answer, or for a language model the next token. */
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

    /** Runs over all examples once for each of the weights. */
    public static Evaluation of(
            Passes passes, LocalRows rows, String task, Map<String, Tensor> global, Map<String, Tensor> personal)
            throws IOException {
        int total = 0;
        int[] right = new int[2];
        for (int start = 0; start < rows.count(); start += rows.batch()) {
            LocalRows.Chosen chosen = rows.chosen(start, Math.min(start + rows.batch(), rows.count()));
            Logits before = new Logits(passes.logits(chosen.batch, global), chosen.examples, chosen.encoded, task);
            Logits after = new Logits(passes.logits(chosen.batch, personal), chosen.examples, chosen.encoded, task);
            total += before.predictable();
            right[0] += before.right();
            right[1] += after.right();
        }
        return new Evaluation(total, right);
    }
}
