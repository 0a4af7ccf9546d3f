package dev.spry.core.store;

import java.util.Map;

import dev.spry.core.Tensor;

/** Where the training of a task stood, without the weights that it does not train. */
public final class Progress {
    public final int step;
    /** Sum over the steps. */
    public final double loss;
    public final int examples;
    public final double seconds;
    public final Map<String, Tensor> weights;
    public final Map<String, Tensor> optimizer;

    public Progress(
            int step, double loss, int examples, double seconds, Map<String, Tensor> weights,
            Map<String, Tensor> optimizer) {
        this.step = step;
        this.loss = loss;
        this.examples = examples;
        this.seconds = seconds;
        this.weights = weights;
        this.optimizer = optimizer;
    }
}
