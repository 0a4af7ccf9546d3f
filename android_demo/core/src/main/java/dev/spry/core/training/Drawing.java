package dev.spry.core.training;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Parameter;
import dev.spry.core.bundle.Unit;
import dev.spry.core.numbers.Directions;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.TrainingSettings;

/** Which directions a step takes, and the gradient that derivatives along them stand for. */
public final class Drawing {
    private final Manifest manifest;
    private final TrainingSettings training;
    /** Derivatives along each direction: one of each example of the batch, or their mean where they share it. */
    private final int rows;
    private final String head;
    /** Whether those of units with bottlenecks are there; where examples share them they are along weights. */
    private final boolean atBottlenecks;

    private Drawing(Manifest manifest, TrainingSettings training, boolean perExample, String head) {
        this.manifest = manifest;
        this.training = training;
        rows = perExample ? training.batch : 1;
        this.head = head;
        atBottlenecks = perExample;
    }

    /** As a job's settings say. */
    public static Drawing of(Manifest manifest, TrainingSettings training) {
        return new Drawing(manifest, training, training.perExample, training.head);
    }

    /** Of units alone, beside a head's true gradient. */
    static Drawing ofUnits(Manifest manifest, TrainingSettings training) {
        return new Drawing(manifest, training, training.perExample, "exact");
    }

    /** Units and head together, along directions that all examples share. */
    static Drawing shared(Manifest manifest, TrainingSettings training) {
        return new Drawing(manifest, training, false, "joint");
    }

    // --- directions ---

    /** [K * rows, *shape] for each parameter of the units, and for the head's where it takes directions. */
    public Map<String, Tensor> directions(int[] units, long seed, int iteration) {
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (int unit : units) {
            draw(found, unit, seed, iteration);
        }
        if (!head.equals("exact")) {
            draw(found, manifest.units.size(), seed, iteration);
        }
        return found;
    }

    /** The head counts as the unit after the last. */
    private void draw(Map<String, Tensor> found, int unit, long seed, int iteration) {
        List<Parameter> parameters = moving(unit);
        int size = 0;
        for (Parameter parameter : parameters) {
            size += parameter.size();
        }
        if (size == 0) {
            return;
        }
        int[] examples = Directions.firstExamples(rows);
        float[] drawn = Directions.draw(seed, unit, size, iteration, training.directions, examples, training.kind);
        int start = 0;
        for (Parameter parameter : parameters) {
            float[] values = new float[training.directions * rows * parameter.size()];
            for (int k = 0; k < training.directions; k++) {
                for (int row = 0; row < rows; row++) {
                    int from = (k * rows + row) * size + start;
                    System.arraycopy(drawn, from, values, (k * rows + row) * parameter.size(), parameter.size());
                }
            }
            int[] shape = Rowwise.shaped(training.directions * rows, parameter.shape());
            found.put(parameter.name, Tensor.of(values, shape));
            start += parameter.size();
        }
    }

    private List<Parameter> moving(int unit) {
        if (unit == manifest.units.size()) {
            return manifest.head;
        }
        Unit found = manifest.unit(unit);
        return atBottlenecks ? found.tangentsOf(training.length) : found.parameters;
    }

    /**
     * Directions at bottlenecks without the tokens that only fill a text, which no loss depends on: `mask` [batch,
     * tokens] is 0 for those. A unit that sees one token alone sees the one that the model reads.
     */
    static Map<String, Tensor> withoutPadding(Map<String, Tensor> drawn, Manifest manifest, Tensor mask) {
        Map<String, Tensor> found = new LinkedHashMap<>(drawn);
        long[] kept = mask.longs();
        manifest.bottlenecks().forEach((name, unit) -> {
            Tensor direction = found.get(name);
            if (direction != null && unit.token == null) {
                int[] shape = direction.shape();
                int rank = shape[shape.length - 1];
                float[] values = direction.floats().clone();
                for (int i = 0; i < values.length; i++) {
                    values[i] *= kept[i / rank % kept.length];
                }
                found.put(name, Tensor.of(values, shape));
            }
        });
        return found;
    }

    // --- gradients ---

    /** What is reported of derivatives [K, batch]; those along a direction that examples share count together. */
    float[] told(float[] jvp, int examples) {
        if (jvp.length == training.directions * rows) {
            return jvp;
        }
        float[] means = new float[training.directions];
        for (int k = 0; k < means.length; k++) {
            double sum = 0;
            for (int example = 0; example < examples; example++) {
                sum += jvp[k * training.batch + example];
            }
            means[k] = (float) (sum / examples);
        }
        return means;
    }

    /** The gradient that a report's derivatives along these directions stand for; the head's where it takes some. */
    public Map<String, Tensor> gradient(ScalarReport report, Map<String, Tensor> drawn) {
        if (head.equals("joint")) {
            float[] sum = report.jvp.clone();
            for (int i = 0; i < sum.length && report.headJvp != null; i++) {
                sum[i] += report.headJvp[i];
            }
            return estimate(sum, report.examples, drawn, Collections.<String>emptySet());
        }
        Set<String> heads = manifest.headNames();
        Map<String, Tensor> found = estimate(report.jvp, report.examples, drawn, heads);
        if (report.headJvp != null) {
            Map<String, Tensor> ofHead = new LinkedHashMap<>(drawn);
            ofHead.keySet().retainAll(heads);
            found.putAll(estimate(report.headJvp, report.examples, ofHead, Collections.<String>emptySet()));
        }
        return found;
    }

    /** The mean over directions and examples of each derivative times its direction. */
    private Map<String, Tensor> estimate(float[] jvp, int examples, Map<String, Tensor> drawn, Set<String> without) {
        Map<String, Tensor> found = new LinkedHashMap<>();
        float share = (float) (1.0 / Math.min(rows, examples));
        for (Map.Entry<String, Tensor> entry : drawn.entrySet()) {
            if (without.contains(entry.getKey())) {
                continue;
            }
            float[] directions = entry.getValue().floats();
            double[] sum = new double[directions.length / jvp.length];
            for (int row = 0; row < jvp.length; row++) {
                if (row % rows < examples) {
                    float coefficient = jvp[row] * share / training.directions;
                    for (int i = 0; i < sum.length; i++) {
                        sum[i] += (double) coefficient * directions[row * sum.length + i];
                    }
                }
            }
            found.put(entry.getKey(), narrowed(sum, Rowwise.inner(entry.getValue().shape())));
        }
        return found;
    }

    static Tensor narrowed(double[] values, int[] shape) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        return Tensor.of(floats, shape);
    }

    // --- the head's exact gradient ---

    /** The head's parameters out of one vector that holds them in the manifest's order. */
    static Map<String, Tensor> splitHead(float[] flat, Manifest manifest) {
        Map<String, Tensor> found = new LinkedHashMap<>();
        int start = 0;
        for (Parameter parameter : manifest.head) {
            float[] part = Arrays.copyOfRange(flat, start, start + parameter.size());
            found.put(parameter.name, Tensor.of(part, parameter.shape()));
            start += parameter.size();
        }
        return found;
    }

    /** The inverse of `splitHead`. */
    static float[] joinHead(Map<String, Tensor> gradients, Manifest manifest) {
        List<float[]> parts = new ArrayList<>();
        int size = 0;
        for (Parameter parameter : manifest.head) {
            parts.add(gradients.get(parameter.name).floats());
            size += parameter.size();
        }
        float[] flat = new float[size];
        int start = 0;
        for (float[] part : parts) {
            System.arraycopy(part, 0, flat, start, part.length);
            start += part.length;
        }
        return flat;
    }
}
