package dev.spry.core.training;

import java.util.Map;

import dev.spry.core.Tensor;

/** A step's loss and gradient, means over the batch's examples. */
public final class Estimate {
    public final double loss;
    public final Map<String, Tensor> gradients;

    Estimate(double loss, Map<String, Tensor> gradients) {
        this.loss = loss;
        this.gradients = gradients;
    }
}
