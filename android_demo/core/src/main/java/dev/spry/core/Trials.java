package dev.spry.core;

import java.io.IOException;
import java.math.BigDecimal;
import java.math.MathContext;
import java.util.Arrays;

import dev.spry.core.bundle.OutputSummary;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.RuntimeSpec;
import dev.spry.core.bundle.TensorSpec;
import dev.spry.core.bundle.Trial;
import dev.spry.core.numbers.Directions;
import dev.spry.core.training.Stepper;

/** Does a runtime compute here what it did where the bundle was written? `edge_client/runtimes/trials.py` notes that. */
final class Trials {
    /** Of adapters' weights: as large as hidden states they would drown the model. */
    private static final float SPREAD = 0.02f;
    /** Of a program's largest output; a smaller one may be what is left of numbers that cancel. */
    private static final double LEAST = 1e-3;
    private static final double NOTHING = 1e-30;

    private Trials() {}

    /**
     * Refuse a runtime whose results are not those that were noted. Gives whether all were tried: not those that take
     * more than `memory` bytes, which no task will run either; null where nothing is known of it.
     */
    static boolean check(ProgramRunner runner, RuntimeSpec spec, Long memory) throws IOException {
        boolean all = true;
        for (Trial trial : spec.trials) {
            for (ProgramSpec program : spec.allPrograms()) {
                if (!program.name().equals(trial.program)) {
                    continue;
                }
                if (memory == null || program.loadBytes + program.peakBytes <= memory) {
                    check(runner, program, trial);
                } else {
                    all = false;
                }
            }
        }
        return all;
    }

    private static void check(ProgramRunner runner, ProgramSpec program, Trial trial) throws IOException {
        Tensor[] results = runner.run(program, inputs(program));
        runner.release(program);
        double least = least(trial);
        for (int i = 0; i < Math.min(results.length, trial.outcomes.size()); i++) {
            String output = program.outputs.get(i).name;
            double error = error(compared(program, output, results[i]), trial.outcomes.get(i), least);
            if (!(error <= trial.bound)) { // nor is what is no number
                throw new WrongResultsException("the runtime " + runner.runtime() + " gives wrong results here: "
                        + output + " of " + program.name() + " is off by " + told(error) + " of its size, at most "
                        + told(trial.bound) + " was expected; update the app, or build it with another version of "
                        + runner.runtime());
            }
        }
    }

    // --- what goes in ---

    private static Tensor[] inputs(ProgramSpec program) {
        Tensor[] found = new Tensor[program.inputs.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = input(program.inputs.get(i), i);
        }
        return found;
    }

    /** Numbers that the seed gives; integers are 1, which is a token, a label and a set mask. */
    private static Tensor input(TensorSpec spec, int seed) {
        int[] shape = spec.shape();
        int size = 1;
        for (int length : shape) {
            size = Math.multiplyExact(size, length);
        }
        if (spec.dtype.equals("int64")) {
            long[] ones = new long[size];
            Arrays.fill(ones, 1);
            return Tensor.of(ones, shape);
        }
        float[] drawn = Directions.draw(seed, 0, size, 0, 1, Directions.firstExamples(1), "normal");
        for (int i = 0; spec.name.startsWith(Stepper.WEIGHT) && i < size; i++) {
            drawn[i] *= SPREAD;
        }
        return Tensor.of(drawn, shape);
    }

    // --- what came out ---

    /** Of a language model's tokens their losses: which follower is likeliest turns on the last digits. */
    private static float[] compared(ProgramSpec program, String output, Tensor result) {
        float[] values = result.floats();
        if (!output.equals("logits") || !labelsTokens(program)) {
            return values;
        }
        int[] shape = result.shape();
        int width = shape[shape.length - 1];
        float[] losses = new float[values.length / width];
        for (int i = 0; i < losses.length; i++) {
            losses[i] = values[i * width + 1];
        }
        return losses;
    }

    private static boolean labelsTokens(ProgramSpec program) {
        int[] each = {program.batch, program.length};
        for (TensorSpec input : program.inputs) {
            if (input.name.equals("labels") && Arrays.equals(input.shape(), each)) {
                return true;
            }
        }
        return false;
    }

    /** The size that an output is held against at least. */
    static double least(Trial trial) {
        double largest = 0;
        for (OutputSummary expected : trial.outcomes) {
            largest = Math.max(largest, expected.size);
        }
        return largest * LEAST;
    }

    /** How far an output is off in its size, and in samples from the first to the last at equal distances. */
    static double error(float[] values, OutputSummary expected, double least) {
        double[] samples = expected.samples();
        double squares = 0;
        for (float value : values) {
            squares += (double) value * value;
        }
        double size = values.length == 0 ? 0 : Math.sqrt(squares / values.length);
        if (Double.isNaN(size) || Double.isInfinite(size) || samples.length > values.length) {
            return Double.POSITIVE_INFINITY;
        }
        double step = samples.length > 1 ? (values.length - 1) / (double) (samples.length - 1) : 0;
        double apart = 0;
        for (int i = 0; i < samples.length; i++) {
            boolean last = i > 0 && i == samples.length - 1;
            apart += Math.pow(values[last ? values.length - 1 : (int) (i * step)] - samples[i], 2);
        }
        double off = samples.length == 0 ? 0 : Math.sqrt(apart / samples.length);
        return Math.max(Math.abs(size - expected.size), off) / Math.max(Math.max(expected.size, least), NOTHING);
    }

    private static String told(double number) {
        return Double.isInfinite(number) || Double.isNaN(number) ? String.valueOf(number)
                : new BigDecimal(number).round(new MathContext(2)).stripTrailingZeros().toString();
    }
}
