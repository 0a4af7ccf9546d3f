package dev.spry.core.numbers;

import java.util.Arrays;
import java.util.Map;
import java.util.Set;

import dev.spry.core.Tensor;
import dev.spry.core.TrainingException;
import dev.spry.core.wire.ServerOptimizer;
import dev.spry.core.wire.ServerOptimizers;
import dev.spry.core.wire.TrainingSettings;

/**
 * A client's local steps, and the server's, which clients repeat in mode iteration.
 *
 * <p>State lies under a slot's name and the parameter's, so that it is saved, sent and resumed like weights. A step
 * puts new tensors into the maps that it is given and leaves the old ones as they were. All arithmetic is of 32 bits, as
 * in the Python client.
 */
public final class Optimizers {
    public static final String FIRST = "m:";
    public static final String SECOND = "v:";
    public static final String COUNT = "t:";

    private static final double BETA1 = 0.9;
    private static final double BETA2 = 0.999;
    private static final float EPSILON = 1e-8f;

    private Optimizers() {}

    /** Moves weights against their gradients; parameters without a gradient stay. */
    public static void localStep(
            Map<String, Tensor> weights, Map<String, Tensor> gradients, Map<String, Tensor> state,
            TrainingSettings training, double rate) {
        float kept = (float) (1 - rate * training.weightDecay);
        for (Map.Entry<String, Tensor> entry : gradients.entrySet()) {
            String name = entry.getKey();
            Tensor old = weights.get(name);
            float[] decayed = old.floats().clone();
            for (int i = 0; i < decayed.length; i++) {
                decayed[i] *= kept;
            }
            float[] gradient = entry.getValue().floats();
            if (training.optimizer.equals("adamw")) {
                adamw(name, decayed, gradient, state, (float) rate, old.shape());
            } else {
                for (int i = 0; i < decayed.length; i++) {
                    decayed[i] -= (float) rate * gradient[i];
                }
            }
            weights.put(name, Tensor.of(decayed, old.shape()));
        }
    }

    private static void adamw(
            String name, float[] weight, float[] gradient, Map<String, Tensor> state, float rate, int[] shape) {
        int count = (state.containsKey(COUNT + name) ? (int) state.get(COUNT + name).floats()[0] : 0) + 1;
        float[] first = copy(state.get(FIRST + name), weight.length, 0f);
        float[] second = copy(state.get(SECOND + name), weight.length, 0f);
        float firstBias = (float) (1 - Math.pow(BETA1, count));
        float secondBias = (float) (1 - Math.pow(BETA2, count));
        for (int i = 0; i < weight.length; i++) {
            first[i] = blend(BETA1, first[i], gradient[i]);
            second[i] = blend(BETA2, second[i], gradient[i] * gradient[i]);
            float scale = (float) Math.sqrt(second[i] / secondBias) + EPSILON;
            weight[i] -= rate * (first[i] / firstBias) / scale;
        }
        state.put(COUNT + name, Tensor.of(new float[] {count}, 1));
        state.put(FIRST + name, Tensor.of(first, shape));
        state.put(SECOND + name, Tensor.of(second, shape));
    }

    /**
     * Moves weights by the mean change that clients report (Reddi et al., 2021). A parameter without a change keeps its
     * value and its state: nobody who was to train it reported.
     */
    public static void serverStep(
            Map<String, Tensor> weights, Map<String, Tensor> changes, Map<String, Tensor> state,
            ServerOptimizers optimizers, Set<String> head) {
        for (Map.Entry<String, Tensor> entry : changes.entrySet()) {
            String name = entry.getKey();
            ServerOptimizer optimizer = head.contains(name) ? optimizers.head : optimizers.units;
            Tensor old = weights.get(name);
            float[] weight = old.floats().clone();
            float[] change = entry.getValue().floats();
            if (optimizer.kind.equals("fedavg")) {
                for (int i = 0; i < weight.length; i++) {
                    weight[i] += change[i];
                }
            } else {
                adaptive(name, weight, change, state, optimizer, old.shape());
            }
            weights.put(name, Tensor.of(weight, old.shape()));
        }
    }

    private static void adaptive(
            String name, float[] weight, float[] change, Map<String, Tensor> state, ServerOptimizer optimizer,
            int[] shape) {
        float[] first = copy(state.get(FIRST + name), weight.length, 0f);
        float[] second = copy(state.get(SECOND + name), weight.length, (float) (optimizer.tau * optimizer.tau));
        for (int i = 0; i < weight.length; i++) {
            first[i] = blend(optimizer.beta1, first[i], change[i]);
            second[i] = seconds(optimizer, second[i], change[i] * change[i]);
            float scale = (float) Math.sqrt(second[i]) + (float) optimizer.tau;
            weight[i] += (float) optimizer.learningRate * first[i] / scale;
        }
        state.put(FIRST + name, Tensor.of(first, shape));
        state.put(SECOND + name, Tensor.of(second, shape));
    }

    private static float seconds(ServerOptimizer optimizer, float second, float square) {
        switch (optimizer.kind) {
            case "fedyogi":
            case "fedsnr": // of a change that is known as one, not device by device
                return second - (float) (1 - optimizer.beta2) * square * Math.signum(second - square);
            case "fedadam":
                return blend(optimizer.beta2, second, square);
            case "fedadagrad":
                return second + square;
            default:
                throw new TrainingException("the job aggregates by " + optimizer.kind
                        + ", which this version of spry does not know: upgrade the app");
        }
    }

    private static float blend(double beta, float old, float following) {
        return (float) beta * old + (float) (1 - beta) * following;
    }

    private static float[] copy(Tensor found, int length, float without) {
        if (found != null) {
            return found.floats().clone();
        }
        float[] values = new float[length];
        Arrays.fill(values, without);
        return values;
    }
}
