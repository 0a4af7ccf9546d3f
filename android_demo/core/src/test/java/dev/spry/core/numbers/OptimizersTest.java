package dev.spry.core.numbers;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.Tensor;
import dev.spry.core.TrainingException;
import dev.spry.core.Vectors;
import dev.spry.core.wire.ServerOptimizers;
import dev.spry.core.wire.TrainingSettings;

class OptimizersTest {
    @Test
    void stepsLocallyAsPythonDoes() throws Exception {
        JSONArray vectors = Vectors.read("training.json").getJSONArray("local");
        assertEquals(4, vectors.length());
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            TrainingSettings training = new TrainingSettings(vector.getJSONObject("training"));
            Map<String, Tensor> weights = Vectors.tensors(vector.getJSONObject("weights"));
            Map<String, Tensor> state = new LinkedHashMap<>();
            JSONArray steps = vector.getJSONArray("steps");
            for (int step = 0; step < steps.length(); step++) {
                JSONObject expected = steps.getJSONObject(step);
                Map<String, Tensor> gradients = Vectors.tensors(expected.getJSONObject("gradients"));
                Optimizers.localStep(weights, gradients, state, training, training.learningRate);
                Vectors.assertSame(Vectors.tensors(expected.getJSONObject("weights")), weights, 2);
                Vectors.assertSame(Vectors.tensors(expected.getJSONObject("state")), state, 2);
            }
        }
    }

    @Test
    void stepsAsTheServerDoes() throws Exception {
        JSONArray vectors = Vectors.read("training.json").getJSONArray("server");
        assertTrue(vectors.length() > 0);
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            ServerOptimizers optimizers = new ServerOptimizers(vector.getJSONObject("optimizers"));
            Map<String, Tensor> weights = Vectors.tensors(vector.getJSONObject("weights"));
            Map<String, Tensor> state = new LinkedHashMap<>();
            JSONArray steps = vector.getJSONArray("steps");
            for (int step = 0; step < steps.length(); step++) {
                JSONObject expected = steps.getJSONObject(step);
                Map<String, Tensor> changes = Vectors.tensors(expected.getJSONObject("changes"));
                Optimizers.serverStep(weights, changes, state, optimizers, Collections.singleton("h"));
                Vectors.assertSame(Vectors.tensors(expected.getJSONObject("weights")), weights, 2);
                Vectors.assertSame(Vectors.tensors(expected.getJSONObject("state")), state, 2);
            }
        }
    }

    @Test
    void leavesOldTensorsAsTheyWere() throws Exception {
        Tensor old = Tensor.of(new float[] {1, 2}, 2);
        Map<String, Tensor> weights = new LinkedHashMap<>(Collections.singletonMap("w", old));
        Map<String, Tensor> gradient = Collections.singletonMap("w", Tensor.of(new float[] {1, 1}, 2));
        TrainingSettings training = new TrainingSettings(new JSONObject("{\"optimizer\": \"adamw\"}"));
        Map<String, Tensor> state = new LinkedHashMap<>();
        Optimizers.localStep(weights, gradient, state, training, 0.1);
        Tensor first = state.get("m:w");
        float[] kept = first.floats().clone();
        Optimizers.localStep(weights, gradient, state, training, 0.1);
        assertEquals(1f, old.floats()[0]);
        assertEquals(kept[0], first.floats()[0]);
    }

    @Test
    void namesAnAggregationOfANewerVersion() throws Exception {
        ServerOptimizers optimizers = new ServerOptimizers(new JSONObject("{\"units\": {\"kind\": \"fedlion\"}}"));
        Map<String, Tensor> weights = new LinkedHashMap<>(Collections.singletonMap("w", Tensor.of(new float[1], 1)));
        String told = assertThrows(TrainingException.class, () -> Optimizers.serverStep(
                weights, Collections.singletonMap("w", Tensor.of(new float[1], 1)), new LinkedHashMap<>(), optimizers,
                Collections.emptySet())).getMessage();
        assertTrue(told.contains("aggregates by fedlion"), told);
    }
}
