package dev.spry.core.training;

import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;

/** Losses and derivatives of a batch. */
public final class Pass {
    /** [batch]; 0 for rows that only fill it. */
    public final float[] loss;
    /** [K, batch] */
    public final float[] jvp;
    /** [K, batch]; 0 where the head gives its gradient. */
    public final float[] headJvp;
    /** The exact ones: the head's, and of an exact pass the units'. */
    public final Map<String, Tensor> gradients = new LinkedHashMap<>();

    /** What directions at bottlenecks are as directions of weights, [K * batch, *shape]. */
    public final Map<String, Tensor> moved = new LinkedHashMap<>();

    Pass(int directions, int batch) {
        loss = new float[batch];
        jvp = new float[directions * batch];
        headJvp = new float[directions * batch];
    }

    /** The mean over the batch's examples. */
    static double mean(float[] loss, Batch batch) {
        double sum = 0;
        for (float value : loss) {
            sum += value;
        }
        return sum / batch.examples;
    }
}
