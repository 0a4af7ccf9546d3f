package dev.spry.core.training;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.TrainingException;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Task;

/** Differences of losses on both sides of the weights: units and head move together, all examples by one direction. */
final class Central extends ScalarEstimator {
    Central(Manifest manifest, Task task, Passes passes) {
        super(manifest, task, passes, Drawing.shared(manifest, task.training));
        if (!task.training.head.equals("joint") && !manifest.head.isEmpty()) {
            throw new TrainingException("central differences move units and head together: the job needs head=joint, "
                    + "it has head=" + task.training.head);
        }
    }

    @Override
    public ScalarReport report(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException {
        int count = task.training.directions;
        int rows = task.training.batch;
        Map<String, Tensor> directions = directions(iteration);
        float sigma = (float) task.training.sigma;
        float span = (float) (2 * task.training.sigma);
        float[] jvp = new float[count * rows];
        float[] loss = new float[rows];
        for (int k = 0; k < count; k++) {
            float[] above = passes.losses(batch, moved(weights, directions, k, sigma));
            float[] below = passes.losses(batch, moved(weights, directions, k, -sigma));
            for (int row = 0; row < rows; row++) {
                loss[row] += (above[row] + below[row]) / 2 / count;
                jvp[k * rows + row] = (above[row] - below[row]) / span;
            }
        }
        float[] headJvp = manifest.head.isEmpty() ? null : new float[jvp.length]; // its part is in the units'
        return told(batch, loss, jvp, headJvp, null);
    }

    /** The weights a step along direction `k` away. */
    private static Map<String, Tensor> moved(
            Map<String, Tensor> weights, Map<String, Tensor> directions, int k, float step) {
        Map<String, Tensor> found = new LinkedHashMap<>(weights);
        for (Map.Entry<String, Tensor> entry : directions.entrySet()) {
            Tensor weight = weights.get(entry.getKey());
            float[] values = weight.floats().clone();
            float[] direction = entry.getValue().floats();
            for (int i = 0; i < values.length; i++) {
                values[i] += step * direction[k * values.length + i];
            }
            found.put(entry.getKey(), Tensor.of(values, weight.shape()));
        }
        return found;
    }
}
