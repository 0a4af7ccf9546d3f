package dev.spry.core.training;

import java.io.IOException;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Task;

/** An estimator whose step is numbers along directions that anybody can draw again. */
public abstract class ScalarEstimator extends Estimator {
    private final Drawing drawing;
    /** What the last report's directions at bottlenecks are as directions of weights. */
    protected Map<String, Tensor> moved = Collections.emptyMap();
    private Map<String, Tensor> drawn;
    private int drawnFor;

    ScalarEstimator(Manifest manifest, Task task, Passes passes, Drawing drawing) {
        super(manifest, task, passes);
        this.drawing = drawing;
    }

    /** What mode iteration sends of a step. */
    public abstract ScalarReport report(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException;

    /** The estimate that the step's numbers make along its directions. */
    @Override
    public Estimate gradient(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException {
        ScalarReport report = report(batch, weights, iteration);
        Map<String, Tensor> along = new LinkedHashMap<>(directions(iteration));
        along.putAll(moved);
        Map<String, Tensor> gradients = new LinkedHashMap<>(drawing.gradient(report, along));
        if (report.headGradient != null) {
            gradients.putAll(Drawing.splitHead(report.headGradient, manifest));
        }
        return new Estimate(report.loss, gradients);
    }

    /** What is reported of derivatives [K, batch], as the directions' rows want them. */
    ScalarReport told(Batch batch, float[] loss, float[] jvp, float[] headJvp, float[] headGradient) {
        float[] ofHead = headJvp == null ? null : drawing.told(headJvp, batch.examples);
        float mean = (float) Pass.mean(loss, batch);
        return new ScalarReport(mean, batch.examples, drawing.told(jvp, batch.examples), ofHead, headGradient);
    }

    /** [K * rows, *shape]; of one step, kept until the next. */
    Map<String, Tensor> directions(int iteration) {
        if (drawn == null || drawnFor != iteration) {
            drawn = drawing.directions(task.units, task.seed, iteration);
            drawnFor = iteration;
        }
        return drawn;
    }
}
