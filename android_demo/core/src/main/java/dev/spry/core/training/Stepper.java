package dev.spry.core.training;

import java.io.IOException;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import dev.spry.core.ProgramInputException;
import dev.spry.core.ProgramRunner;
import dev.spry.core.Tensor;
import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Parameter;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.TensorSpec;
import dev.spry.core.bundle.Unit;

/**
 * Steps of one shape, each a chain of programs that a runtime runs one after the other. What a step gives is the last
 * program's outputs by name: loss, logits, jvp, head_jvp, and gradients under GRADIENT + parameter; of all programs what
 * directions at bottlenecks are in weights, under MOVED + parameter.
 *
 * <p>Everything before the cut can be computed once (`prefix`) and kept; steps then start from the kept hidden states.
 */
public final class Stepper {
    /** What stands before a parameter's name in the names of inputs and outputs. */
    public static final String WEIGHT = "w:";
    static final String DIRECTION = "v:";
    static final String GRADIENT = "g:";
    static final String MOVED = "x:";

    public final Chain chain;
    private final ProgramRunner runner;
    private final boolean lowMemory;
    private final Map<String, Integer> firstUse = new HashMap<>();
    private final Map<String, Integer> lastUse = new HashMap<>();
    private final Map<String, Tensor> zeros = new HashMap<>();

    /**
     * @param runner where programs run
     * @param lowMemory hold one program at a time, at the cost of loading it anew in every step
     */
    public Stepper(Chain chain, ProgramRunner runner, boolean lowMemory) {
        this.chain = chain;
        this.runner = runner;
        this.lowMemory = lowMemory;
        for (Unit unit : chain.manifest.units) {
            for (Parameter parameter : unit.parameters) {
                firstUse.put(parameter.name, Chain.firstUse(chain.manifest, unit));
                lastUse.put(parameter.name, Chain.lastUse(chain.manifest, unit));
            }
        }
    }

    // --- steps ---

    /** What a step is given: tokens, labels and the rest under the names of the programs' inputs. */
    public Map<String, Tensor> values(
            Map<String, Tensor> tokens, Tensor labels, int examples, Map<String, Tensor> weights) {
        checkLabels(labels);
        Map<String, Tensor> values = new HashMap<>(tokens);
        values.put("labels", labels);
        values.put("example_weight", shares(examples));
        for (Map.Entry<String, Tensor> weight : weights.entrySet()) {
            values.put(WEIGHT + weight.getKey(), weight.getValue());
        }
        return values;
    }

    /** How much each row counts, as shares of 1. */
    private Tensor shares(int examples) {
        float[] shares = new float[chain.batch];
        Arrays.fill(shares, 0, examples, (float) (1.0 / examples));
        return Tensor.of(shares, chain.batch);
    }

    /** The hidden states that enter the cut; null where nothing lies before it. */
    public Tensor prefix(Map<String, Tensor> values, int cut) throws IOException {
        List<ProgramSpec> programs = chain.prefix(cut);
        return programs.isEmpty() ? null : follow(programs, values, null).get("hidden");
    }

    /** Losses and logits, from a prefix's hidden states where only what follows the cut has changed. */
    public Map<String, Tensor> forward(Map<String, Tensor> values, Tensor hidden, int cut) throws IOException {
        return follow(chain.forward(cut), values, hidden);
    }

    /**
     * Losses and their derivatives along the units' directions, from the hidden states that enter the cut; of the head
     * its exact gradient, or with `scalar` its own derivative.
     */
    public Map<String, Tensor> suffix(
            Map<String, Tensor> values, Tensor hidden, Map<String, Tensor> directions, int cut, boolean scalar)
            throws IOException {
        checkDirections(directions.keySet(), cut, scalar, chain.head() + 1);
        return follow(chain.suffix(cut, scalar), withDirections(values, directions), hidden);
    }

    /** Losses and true gradients at the memory of one segment and the states between segments. */
    public Map<String, Tensor> exact(Map<String, Tensor> values, int cut) throws IOException {
        int lowest = chain.lowest(cut);
        return andBack(values, prefix(values, lowest), lowest);
    }

    /**
     * The hidden states and the tangents that arrive at a segment behind the cut, from those that enter the cut;
     * tangents only where something moves.
     */
    public Map<String, Tensor> tangents(
            Map<String, Tensor> values, Tensor hidden, Map<String, Tensor> directions, int cut, int end)
            throws IOException {
        checkDirections(directions.keySet(), cut, false, end);
        List<ProgramSpec> programs = chain.tangents(cut, end);
        if (programs.isEmpty()) {
            return Collections.singletonMap("hidden", hidden);
        }
        return follow(programs, withDirections(values, directions), hidden);
    }

    /**
     * Losses and true gradients of what lies behind a segment, from the hidden states that enter it: to the head and
     * back. Among the results, `gradient` is that by the hidden states.
     */
    public Map<String, Tensor> andBack(Map<String, Tensor> values, Tensor hidden, int first) throws IOException {
        int head = chain.head();
        Tensor[] states = new Tensor[head + 1]; // what enters each segment
        states[first] = hidden;
        for (int segment = first; segment < head; segment++) {
            ProgramSpec plain = chain.program(segment, "plain");
            states[segment + 1] = run(plain, values, states[segment], null, null).get("hidden");
        }
        Map<String, Tensor> result = run(chain.program(head, "vjp"), values, states[head], null, null);
        Map<String, Tensor> found = new LinkedHashMap<>(result);
        Tensor gradient = result.get("gradient");
        for (int segment = head - 1; segment >= first; segment--) {
            states[segment + 1] = null;
            result = run(chain.program(segment, "vjp"), values, states[segment], null, gradient);
            gradient = result.get("gradient");
            for (Map.Entry<String, Tensor> entry : result.entrySet()) {
                if (entry.getKey().startsWith(GRADIENT)) { // a parameter may be shared by several segments
                    found.merge(entry.getKey(), entry.getValue(), Stepper::sum);
                }
            }
        }
        found.put("gradient", gradient);
        Set<String> early = new HashSet<>();
        firstUse.forEach((name, use) -> {
            if (use < first) {
                early.add(GRADIENT + name);
            }
        });
        found.keySet().removeAll(early);
        return found;
    }

    /**
     * [K, batch]: derivatives of the examples' losses along the tangents [K * batch, ...] of a state, from the weighted
     * loss's gradient by it; null where nothing moves.
     */
    static Tensor slopes(Tensor gradient, Tensor tangent, Tensor shares) {
        if (gradient == null || tangent == null) {
            return null;
        }
        float[] weights = shares.floats();
        float[] loss = gradient.floats();
        float[] along = tangent.floats();
        int width = loss.length / weights.length;
        float[] slopes = new float[along.length / width];
        for (int row = 0; row < slopes.length; row++) {
            int example = row % weights.length;
            double sum = 0;
            for (int i = 0; i < width; i++) {
                sum += (double) loss[example * width + i] * along[row * width + i];
            }
            slopes[row] = weights[example] > 0 ? (float) (sum / weights[example]) : 0;
        }
        return Tensor.of(slopes, slopes.length / weights.length, weights.length);
    }

    private static Map<String, Tensor> withDirections(Map<String, Tensor> values, Map<String, Tensor> directions) {
        Map<String, Tensor> all = new HashMap<>(values);
        for (Map.Entry<String, Tensor> direction : directions.entrySet()) {
            all.put(DIRECTION + direction.getKey(), direction.getValue());
        }
        return all;
    }

    /** The gradients among a step's results, by parameter. */
    static Map<String, Tensor> gradients(Map<String, Tensor> found) {
        return within(found, GRADIENT);
    }

    /** What stands under a prefix, by parameter. */
    static Map<String, Tensor> within(Map<String, Tensor> found, String prefix) {
        Map<String, Tensor> own = new LinkedHashMap<>();
        for (Map.Entry<String, Tensor> entry : found.entrySet()) {
            if (entry.getKey().startsWith(prefix)) {
                own.put(entry.getKey().substring(prefix.length()), entry.getValue());
            }
        }
        return own;
    }

    /** Gives back the memory of all programs of this shape. */
    public void release() {
        for (ProgramSpec program : chain.programs()) {
            runner.release(program);
        }
    }

    // --- running programs ---

    /** Runs programs one after the other, each on the state and tangent that the one before left. */
    private Map<String, Tensor> follow(List<ProgramSpec> programs, Map<String, Tensor> values, Tensor hidden)
            throws IOException {
        Map<String, Tensor> found = new LinkedHashMap<>();
        Map<String, Tensor> moved = new LinkedHashMap<>();
        Tensor tangent = null;
        for (ProgramSpec program : programs) {
            found = run(program, values, hidden, tangent, null);
            hidden = found.get("hidden");
            tangent = found.get("tangent");
            within(found, MOVED).forEach((name, value) -> moved.put(MOVED + name, value));
        }
        found.putAll(moved);
        return found;
    }

    private Map<String, Tensor> run(
            ProgramSpec program, Map<String, Tensor> values, Tensor hidden, Tensor tangent, Tensor gradient)
            throws IOException {
        Tensor[] inputs = new Tensor[program.inputs.size()];
        for (int i = 0; i < inputs.length; i++) {
            TensorSpec spec = program.inputs.get(i);
            Tensor state = spec.name.equals("hidden") ? hidden
                    : spec.name.equals("tangent") ? tangent
                    : spec.name.equals("gradient") ? gradient : values.get(spec.name);
            inputs[i] = input(program, spec, state);
        }
        Tensor[] outputs = runner.run(program, inputs);
        if (lowMemory) {
            runner.release(program);
        }
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (int i = 0; i < outputs.length; i++) {
            found.put(program.outputs.get(i).name, outputs[i]);
        }
        return found;
    }

    private Tensor input(ProgramSpec program, TensorSpec spec, Tensor value) {
        if (value == null) {
            if (spec.name.equals("tangent") || spec.name.startsWith(DIRECTION)) {
                return zero(spec.shape());
            }
            throw new ProgramInputException(called(program, spec) + " is missing; expected " + spec.dtype + " "
                    + Arrays.toString(spec.shape()));
        }
        if (!Arrays.equals(value.shape(), spec.shape()) || !value.dtype().equals(spec.dtype)) {
            throw new ProgramInputException(called(program, spec) + " must be " + spec.dtype + " "
                    + Arrays.toString(spec.shape()) + ", got " + value.dtype() + " " + Arrays.toString(value.shape()));
        }
        return value;
    }

    private static String called(ProgramSpec program, TensorSpec spec) {
        return spec.name + ", an input of " + program.name() + ",";
    }

    /** One array serves all parameters of a shape that do not move. */
    private Tensor zero(int[] shape) {
        return zeros.computeIfAbsent(Arrays.toString(shape), key -> {
            int count = 1;
            for (int length : shape) {
                count *= length;
            }
            return Tensor.of(new float[count], shape);
        });
    }

    private static Tensor sum(Tensor one, Tensor other) {
        float[] sum = one.floats().clone();
        float[] more = other.floats();
        for (int i = 0; i < sum.length; i++) {
            sum[i] += more[i];
        }
        return Tensor.of(sum, one.shape());
    }

    // --- what goes in ---

    /** A direction that no program would read would still enter the estimate of the gradient. */
    private void checkDirections(Set<String> names, int cut, boolean scalar, int end) {
        Set<String> head = chain.manifest.headNames();
        for (String name : names) {
            if (head.contains(name)) {
                if (!scalar) {
                    throw new ProgramInputException(
                            "this step gives the exact gradient of " + name + ", so it takes no direction for it");
                }
            } else if (!firstUse.containsKey(name)) {
                throw new ProgramInputException(
                        "a direction was given for " + name + ", which the bundle does not train");
            } else if (firstUse.get(name) < cut) {
                throw new ProgramInputException(name + " is used in " + chain.name(firstUse.get(name))
                        + ", before the cut " + chain.name(cut) + ": cut earlier or leave it out");
            } else if (lastUse.get(name) >= end) {
                throw new ProgramInputException(name + " is used in " + chain.name(lastUse.get(name))
                        + ", and this step goes back to " + chain.name(end)
                        + ": go back less far, or take no direction for it");
            }
        }
    }

    /** A label out of range would read past the end of the logits. */
    private void checkLabels(Tensor labels) {
        String task = chain.manifest.model.task;
        long limit = task.equals("qa") ? chain.length
                : task.equals("causal-lm") ? chain.manifest.model.vocabulary : classes();
        for (long label : labels.longs()) {
            boolean ignored = label == Manifest.IGNORED && !task.equals("seq-cls");
            if (!ignored && (label < 0 || label >= limit)) {
                String also = task.equals("seq-cls") ? "" : ", or " + Manifest.IGNORED + " to ignore it";
                throw new ProgramInputException("labels must be from 0 to " + (limit - 1) + also + "; got " + label);
            }
        }
    }

    private int classes() {
        for (TensorSpec output : chain.program(chain.head(), "plain").outputs) {
            if (output.name.equals("logits")) {
                int[] shape = output.shape();
                return shape[shape.length - 1];
            }
        }
        throw new ProgramInputException("the head's program gives no logits; export the bundle again");
    }
}
