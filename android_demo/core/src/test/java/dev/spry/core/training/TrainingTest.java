package dev.spry.core.training;

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
import dev.spry.core.bundle.Manifest;
import dev.spry.core.wire.Task;

class TrainingTest {
    private static Task task(JSONObject training) throws Exception {
        return new Task(new JSONObject()
                .put("id", "t").put("job", "j").put("job_name", "job").put("round", 1).put("seed", 3)
                .put("units", new JSONArray().put(1)).put("cut", 1).put("bundle", "b").put("runtime", "onnx")
                .put("version", 0).put("iteration", 0).put("seconds", 1.0).put("training", training)
                .put("optimizers", new JSONObject()).put("batch", 2));
    }

    private static Manifest manifest() throws Exception {
        return Vectors.parsed(Vectors.manifest());
    }

    /** Three examples without content. */
    private static final Rows ROWS = new Rows() {
        @Override
        public int count() {
            return 3;
        }

        @Override
        public int batch() {
            return 2;
        }

        @Override
        public Batch encode(int number, int[] places) {
            Map<String, Tensor> none = Collections.emptyMap();
            return new Batch(number, none, Tensor.of(new long[2], 2), places.length);
        }
    };

    private static Training training(JSONObject settings, float gradient) throws Exception {
        Task task = task(settings);
        Estimator estimator = new Estimator(manifest(), task, null) {
            @Override
            public Estimate gradient(Batch batch, Map<String, Tensor> weights, int iteration) {
                Tensor found = Tensor.of(new float[] {gradient, gradient}, 2, 1);
                return new Estimate(1.5, Collections.singletonMap("second.b", found));
            }
        };
        return new Training(task, manifest(), estimator, new Batches(ROWS, task.seed));
    }

    private static State start() {
        return new State(Collections.singletonMap("second.b", Tensor.of(new float[2], 2, 1)));
    }

    @Test
    void countsStepsAsPythonDoes() throws Exception {
        assertEquals(4, training(new JSONObject("{\"epochs\": 2}"), 1).steps());
        assertEquals(5, training(new JSONObject("{\"epochs\": 2, \"iterations\": 5}"), 1).steps());
        assertEquals(1, training(new JSONObject("{\"mode\": \"iteration\"}"), 1).steps());
        assertEquals(7, training(new JSONObject("{\"mode\": \"iteration\", \"iterations\": 7}"), 1).steps());
    }

    @Test
    void countsExamplesOfTheFirstPassOnly() throws Exception {
        Training training = training(new JSONObject("{\"epochs\": 2, \"learning_rate\": 0.5}"), 1);
        State first = start();
        State state = first;
        while (state.step < training.steps()) {
            state = training.next(state);
        }
        assertEquals(3, state.examples);
        assertEquals(6.0, state.loss);
        assertEquals(-2f, state.weights.get("second.b").floats()[0]);
        assertEquals(0f, first.weights.get("second.b").floats()[0]);
    }

    @Test
    void movesWhatStandsBeforeTheLogitsByTheSmallerRate() throws Exception {
        JSONObject known = Vectors.manifest().put(
                "features", new JSONObject().put("weight", "head.weight").put("bias", "").put("square", 1.0));
        Manifest manifest = Vectors.parsed(known);
        assertEquals(Collections.singleton("head.bias"), manifest.beforeLogits());
        assertTrue(Vectors.parsed(Vectors.manifest().put("features", JSONObject.NULL)).beforeLogits().isEmpty());
        Task task = task(new JSONObject("{\"learning_rate\": 0.25, \"head_learning_rate\": 0.5}"));
        Map<String, Tensor> ones = new LinkedHashMap<>();
        for (String name : new String[] {"second.b", "head.weight", "head.bias"}) {
            ones.put(name, Tensor.of(new float[] {1}, 1));
        }
        Estimator estimator = new Estimator(manifest, task, null) {
            @Override
            public Estimate gradient(Batch batch, Map<String, Tensor> weights, int iteration) {
                return new Estimate(1.5, ones);
            }
        };
        State after = new Training(task, manifest, estimator, new Batches(ROWS, task.seed)).next(new State(ones));
        assertEquals(0.75f, after.weights.get("second.b").floats()[0]);
        assertEquals(0.5f, after.weights.get("head.weight").floats()[0]);
        assertEquals(0.75f, after.weights.get("head.bias").floats()[0]);
    }

    @Test
    void refusesNumbersThatAreNotFinite() throws Exception {
        Training training = training(new JSONObject(), Float.NaN);
        String told = assertThrows(TrainingException.class, () -> training.next(start())).getMessage();
        assertTrue(told.startsWith("step 0 gave a loss or gradient that is not finite (loss 1.5)"), told);
    }

    @Test
    void namesTheEstimatorsThereAre() throws Exception {
        check("this version of spry has no estimator 'second-order'; it has forward, central, exact, mixed",
                new JSONObject("{\"estimator\": \"second-order\"}"));
        check("the job needs head=joint, it has head=exact", new JSONObject("{\"estimator\": \"central\"}"));
    }

    private static void check(String expected, JSONObject settings) throws Exception {
        Task task = task(settings);
        Manifest manifest = manifest();
        String told = assertThrows(
                TrainingException.class, () -> Estimator.of(manifest, task, null)).getMessage();
        assertTrue(told.contains(expected), told);
    }
}
