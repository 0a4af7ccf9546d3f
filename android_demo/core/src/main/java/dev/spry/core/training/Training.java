package dev.spry.core.training;

import java.io.IOException;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

import dev.spry.core.Tensor;
import dev.spry.core.TrainingException;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.numbers.Optimizers;
import dev.spry.core.wire.Report;
import dev.spry.core.wire.Task;
import dev.spry.core.wire.TrainingSettings;

/** Mode epoch: a client's part of a round, step by step. */
public final class Training {
    private static final double NANOSECOND = 1e-9;

    private final Task task;
    private final Manifest manifest;
    private final Estimator estimator;
    private final Batches batches;
    private final Set<String> head;
    private final Set<String> beforeLogits;

    public Training(Task task, Manifest manifest, Estimator estimator, Batches batches) {
        this.task = task;
        this.manifest = manifest;
        this.head = manifest.headNames();
        this.beforeLogits = manifest.beforeLogits();
        this.estimator = estimator;
        this.batches = batches;
    }

    /** How many steps the round has. */
    public int steps() {
        return stepsIn(task.training, batches.count());
    }

    /** How many steps a round has over so many batches. */
    public static int stepsIn(TrainingSettings training, int batches) {
        if (training.mode.equals("iteration")) {
            return Math.max(training.iterations, 1);
        }
        return training.iterations > 0 ? training.iterations : training.epochs * batches;
    }

    /** The state after one more step. */
    public State next(State state) throws IOException {
        long started = System.nanoTime();
        Batch batch = batches.at(state.step);
        Estimate found = estimator.gradient(batch, state.weights, state.step);
        checkFinite(found.loss, found.gradients, state.step);
        Map<String, Tensor> weights = new LinkedHashMap<>(state.weights);
        Map<String, Tensor> optimizer = new LinkedHashMap<>(state.optimizer);
        for (String name : found.gradients.keySet()) {
            Map<String, Tensor> own = Collections.singletonMap(name, found.gradients.get(name));
            Optimizers.localStep(weights, own, optimizer, task.training, rate(name));
        }
        int examples = state.step < batches.count() ? batch.examples : 0;
        double seconds = (System.nanoTime() - started) * NANOSECOND;
        return new State(weights, optimizer, state.step + 1, state.loss + found.loss, state.examples + examples,
                state.seconds + seconds);
    }

    /**
     * The head's rate is found from what reaches its last layer. A layer before that one, such as DistilBERT's, feeds
     * a layer that learns fast, and at the same rate its steps soon are too long.
     */
    private double rate(String name) {
        double units = task.training.learningRate;
        double ofHead = headRate(task.training);
        if (beforeLogits.contains(name)) {
            return Math.min(units, ofHead);
        }
        return head.contains(name) ? ofHead : units;
    }

    /** The rate of the head's own steps: that of the units where the job leaves it out. */
    static double headRate(TrainingSettings training) {
        return training.headLearningRate == null ? training.learningRate : training.headLearningRate;
    }

    static void checkFinite(double loss, Map<String, Tensor> values, int step) {
        boolean finite = !Double.isNaN(loss) && !Double.isInfinite(loss);
        for (Tensor tensor : values.values()) {
            for (float value : tensor.floats()) {
                finite &= !Float.isNaN(value) && !Float.isInfinite(value);
            }
        }
        if (!finite) {
            throw new TrainingException("step " + step + " gave a loss or gradient that is not finite (loss " + loss
                    + "): lower the learning rate");
        }
    }

    /** What the server is sent: the parameters that the task trains. */
    public Map<String, Tensor> update(State state) {
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (String name : Estimator.trained(manifest, task)) {
            found.put(name, state.weights.get(name));
        }
        return found;
    }

    /** What an update says beside its tensors. */
    public static Report report(State state, long peakBytes, Evaluation held, Moments moments) {
        Report report = new Report(state.examples, state.step, state.loss / state.step);
        report.seconds = Math.round(state.seconds * 1000) / 1000.0;
        report.peakBytes = peakBytes;
        report.heldBack = held.predictions;
        report.rightGlobal = held.right[0];
        report.rightPersonal = held.right[1];
        report.measured = moments.rows;
        return report;
    }
}
