package dev.spry.core.training;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.IntStream;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Task;

/**
 * Exact through the model's last blocks, forward before them.
 *
 * <p>The gradient that arrives where the way back ends, times the tangents that arrive at the same place, gives the
 * directional derivatives: no block is gone through for both.
 */
final class Mixed extends DirectedEstimator {
    Mixed(Manifest manifest, Task task, Passes passes) {
        super(manifest, task, passes, Drawing.ofUnits(manifest, task.training), estimated(manifest, task, passes));
    }

    /** The task's units before the segment that a step goes back to. */
    private static int[] estimated(Manifest manifest, Task task, Passes passes) {
        int end = passes.exactCut();
        return IntStream.of(task.units)
                .filter(unit -> Chain.firstUse(manifest, manifest.unit(unit)) < end)
                .toArray();
    }

    @Override
    public Estimate gradient(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException {
        Pass whole = passes.mixed(batch, weights, directions(iteration, batch));
        moved = whole.moved;
        ScalarReport report = told(batch, whole.loss, whole.jvp, null, null);
        Map<String, Tensor> gradients = new LinkedHashMap<>(estimated(report, iteration));
        gradients.putAll(own(whole.gradients));
        return new Estimate(report.loss, gradients);
    }
}
