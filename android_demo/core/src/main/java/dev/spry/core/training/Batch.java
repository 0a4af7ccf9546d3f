package dev.spry.core.training;

import java.util.Map;

import dev.spry.core.Tensor;

/** Examples as programs take them; rows that only fill the batch weigh nothing and come last. */
public final class Batch {
    /** Among the round's batches. */
    public final int number;
    /** Token inputs by name, int64 [batch, length] each. */
    public final Map<String, Tensor> tokens;
    /** int64: [batch], [batch, 2] or [batch, length] by the task. */
    public final Tensor labels;
    /** How many rows are examples: the first ones. */
    public final int examples;

    public Batch(int number, Map<String, Tensor> tokens, Tensor labels, int examples) {
        this.number = number;
        this.tokens = tokens;
        this.labels = labels;
        this.examples = examples;
    }
}
