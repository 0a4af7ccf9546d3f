package dev.spry.core.training;

import java.io.IOException;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Task;

/** One whose step is numbers along its directions, so that mode iteration can send them instead. */
public abstract class ScalarEstimator extends DirectedEstimator {
    ScalarEstimator(Manifest manifest, Task task, Passes passes, Drawing drawing) {
        super(manifest, task, passes, drawing, task.units);
    }

    /** What mode iteration sends of a step. */
    public abstract ScalarReport report(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException;

    /** The estimate that the step's numbers make along its directions. */
    @Override
    public Estimate gradient(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException {
        ScalarReport report = report(batch, weights, iteration);
        Map<String, Tensor> gradients = new LinkedHashMap<>(estimated(report, iteration));
        if (report.headGradient != null) {
            gradients.putAll(Drawing.splitHead(report.headGradient, manifest));
        }
        return new Estimate(report.loss, gradients);
    }
}
