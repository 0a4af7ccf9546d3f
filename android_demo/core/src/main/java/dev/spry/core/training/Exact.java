package dev.spry.core.training;

import java.io.IOException;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.Task;

/** Reverse mode, one segment at a time. */
final class Exact extends Estimator {
    Exact(Manifest manifest, Task task, Passes passes) {
        super(manifest, task, passes);
    }

    @Override
    public Estimate gradient(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException {
        Pass whole = passes.exact(batch, weights);
        return new Estimate(Pass.mean(whole.loss, batch), own(whole.gradients));
    }
}
