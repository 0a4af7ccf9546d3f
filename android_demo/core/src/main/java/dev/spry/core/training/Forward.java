package dev.spry.core.training;

import java.io.IOException;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Task;

/** Directional derivatives, in the same pass as the losses (SPRY). */
final class Forward extends ScalarEstimator {
    Forward(Manifest manifest, Task task, Passes passes) {
        super(manifest, task, passes, Drawing.of(manifest, task.training));
    }

    @Override
    public ScalarReport report(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException {
        boolean scalar = !task.training.head.equals("exact");
        Pass found = passes.along(batch, weights, directions(iteration, batch), scalar);
        moved = found.moved;
        boolean headed = !manifest.head.isEmpty();
        float[] headJvp = scalar && headed ? found.headJvp : null;
        float[] gradient = !scalar && headed ? Drawing.joinHead(found.gradients, manifest) : null;
        return told(batch, found.loss, found.jvp, headJvp, gradient);
    }
}
