package dev.spry.core.training;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Parameter;
import dev.spry.core.numbers.Optimizers;
import dev.spry.core.wire.ServerOptimizers;
import dev.spry.core.wire.StepRecord;
import dev.spry.core.wire.TrainingSettings;

/** Mode iteration: from a published record to the next weights, the same on the server and on every client. */
final class Replay {
    /** The version that the record leads to. */
    final Kept kept;
    /** The names of the parameters that moved. */
    final Set<String> moved;

    /** Applies a step to the version before it. */
    Replay(StepRecord record, Kept before, Manifest manifest, TrainingSettings training, ServerOptimizers optimizers) {
        Map<String, Tensor> weights = new LinkedHashMap<>(before.weights);
        Map<String, Tensor> state = new LinkedHashMap<>(before.optimizer);
        Map<String, Tensor> changes = changes(record, manifest, training);
        Optimizers.serverStep(weights, changes, state, optimizers, manifest.headNames());
        kept = new Kept(record.version, weights, state);
        moved = changes.keySet();
    }

    /** The mean change of every parameter, weighted by examples: one local SGD step of each participant. */
    private static Map<String, Tensor> changes(StepRecord record, Manifest manifest, TrainingSettings training) {
        Map<String, double[]> totals = new LinkedHashMap<>();
        Map<String, Integer> examples = new HashMap<>();
        Drawing drawing = Drawing.of(manifest, training);
        for (StepRecord.Participant one : record.participants) {
            Map<String, Tensor> drawn = drawing.directions(one.units, one.seed, record.iteration);
            for (Map.Entry<String, Tensor> entry : drawing.gradient(one.report, drawn).entrySet()) {
                float[] gradient = entry.getValue().floats();
                double[] total = totals.computeIfAbsent(entry.getKey(), name -> new double[gradient.length]);
                for (int i = 0; i < total.length; i++) {
                    total[i] += one.report.examples * (double) gradient[i];
                }
                examples.merge(entry.getKey(), one.report.examples, Integer::sum);
            }
        }
        Set<String> head = manifest.headNames();
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (Parameter parameter : manifest.parameters()) {
            double[] total = totals.get(parameter.name);
            if (total != null) {
                double rate = head.contains(parameter.name) ? Training.headRate(training) : training.learningRate;
                found.put(parameter.name, scaled(total, -rate / examples.get(parameter.name), parameter.shape()));
            }
        }
        if (record.headGradient != null) {
            Drawing.splitHead(record.headGradient, manifest).forEach((name, gradient) -> {
                double[] values = new double[gradient.size()];
                for (int i = 0; i < values.length; i++) {
                    values[i] = gradient.floats()[i];
                }
                found.put(name, scaled(values, -Training.headRate(training), gradient.shape()));
            });
        }
        return found;
    }

    private static Tensor scaled(double[] values, double factor, int[] shape) {
        for (int i = 0; i < values.length; i++) {
            values[i] *= factor;
        }
        return Drawing.narrowed(values, shape);
    }
}
