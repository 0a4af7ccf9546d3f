package dev.spry.core.training;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;

/** A version of a job's weights. Neither map changes, nor do the tensors in it: a step makes new ones. */
public final class Kept {
    public final int version;
    public final Map<String, Tensor> weights;
    /** The server optimizer's state, in mode iteration. */
    public final Map<String, Tensor> optimizer;

    /** When the server published it, where its task told that; else 0. */
    public final double published;

    public Kept(int version, Map<String, Tensor> weights, Map<String, Tensor> optimizer) {
        this(version, weights, optimizer, 0);
    }

    public Kept(int version, Map<String, Tensor> weights, Map<String, Tensor> optimizer, double published) {
        this.version = version;
        this.published = published;
        this.weights = Collections.unmodifiableMap(new LinkedHashMap<>(weights));
        this.optimizer = Collections.unmodifiableMap(new LinkedHashMap<>(optimizer));
    }

    public Kept(int version, Map<String, Tensor> weights) {
        this(version, weights, Collections.<String, Tensor>emptyMap());
    }
}
