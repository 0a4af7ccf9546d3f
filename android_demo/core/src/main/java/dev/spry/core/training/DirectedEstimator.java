package dev.spry.core.training;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Task;

/** An estimator along directions that anybody can draw again. */
abstract class DirectedEstimator extends Estimator {
    private final Drawing drawing;
    private final int[] units;
    /** What the last pass's directions at bottlenecks are as directions of weights. */
    protected Map<String, Tensor> moved = Collections.emptyMap();
    private Map<String, Tensor> drawn;
    private int drawnFor;

    /** @param units those of the task's whose gradients are estimated */
    DirectedEstimator(Manifest manifest, Task task, Passes passes, Drawing drawing, int[] units) {
        super(manifest, task, passes);
        this.drawing = drawing;
        this.units = units;
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
            drawn = drawing.directions(units, task.seed, iteration);
            drawnFor = iteration;
        }
        return drawn;
    }

    /** Those of a step without what lies at padded tokens of a batch. */
    Map<String, Tensor> directions(int iteration, Batch batch) {
        return Drawing.withoutPadding(directions(iteration), manifest, batch.tokens.get("attention_mask"));
    }

    /** The gradient that a step's numbers make along its directions. */
    Map<String, Tensor> estimated(ScalarReport report, int iteration) {
        Map<String, Tensor> along = new LinkedHashMap<>(directions(iteration));
        along.putAll(moved);
        return drawing.gradient(report, along);
    }
}
