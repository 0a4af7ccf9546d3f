package dev.spry.core.training;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;

/** Where a round of mode epoch stands: all that a resumed run needs. Never changed, only followed by the next one. */
public final class State {
    /** All of the job's. */
    public final Map<String, Tensor> weights;
    public final Map<String, Tensor> optimizer;
    public final int step;
    /** Sum over the steps. */
    public final double loss;
    /** Sum over the steps of the first pass. */
    public final int examples;
    public final double seconds;

    public State(
            Map<String, Tensor> weights, Map<String, Tensor> optimizer, int step, double loss, int examples,
            double seconds) {
        this.weights = Collections.unmodifiableMap(new LinkedHashMap<>(weights));
        this.optimizer = Collections.unmodifiableMap(new LinkedHashMap<>(optimizer));
        this.step = step;
        this.loss = loss;
        this.examples = examples;
        this.seconds = seconds;
    }

    /** Before the first step. */
    public State(Map<String, Tensor> weights) {
        this(weights, Collections.<String, Tensor>emptyMap(), 0, 0, 0, 0);
    }
}
