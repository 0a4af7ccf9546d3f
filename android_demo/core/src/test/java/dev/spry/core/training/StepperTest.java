package dev.spry.core.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

import dev.spry.core.ProgramInputException;
import dev.spry.core.ProgramRunner;
import dev.spry.core.Tensor;
import dev.spry.core.Vectors;
import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.ProgramSpec;

/** What a step refuses before it runs anything, and what it keeps loaded. */
class StepperTest {
    private static final Map<String, Tensor> NONE = Collections.emptyMap();
    private JSONObject manifest;

    @BeforeEach
    void aHeadWithThreeClasses() throws Exception {
        manifest = Vectors.manifest();
        JSONArray programs = manifest.getJSONObject("runtimes").getJSONObject("onnx").getJSONArray("programs");
        for (int i = 0; i < programs.length(); i++) {
            JSONObject program = programs.getJSONObject(i);
            program.put("inputs", new JSONArray().put(tensor("hidden", program.getInt("batch"))));
            program.put("outputs", new JSONArray().put(tensor("logits", program.getInt("batch"))));
        }
    }

    private static JSONObject tensor(String name, int batch) throws Exception {
        JSONArray shape = new JSONArray().put(batch).put(3);
        return new JSONObject().put("name", name).put("dtype", "float32").put("shape", shape);
    }

    private Stepper stepper() {
        return new Stepper(new Chain(Vectors.parsed(manifest), "onnx", 2, 4, 1), new Nothing(), false);
    }

    private static final class Nothing implements ProgramRunner {
        @Override
        public String runtime() {
            return "onnx";
        }

        @Override
        public Tensor[] run(ProgramSpec program, Tensor[] inputs) {
            throw new AssertionError(program.name() + " was to be refused");
        }

        @Override
        public void release(ProgramSpec program) {
            throw new AssertionError(program.name() + " was never loaded");
        }

        @Override
        public void close() {}
    }

    @Test
    void labelsOutOfRange() throws Exception {
        Tensor good = Tensor.of(new long[] {0, 2}, 2);
        Tensor high = Tensor.of(new long[] {0, 3}, 2);
        Tensor ignored = Tensor.of(new long[] {0, -100}, 2);
        assertTrue(stepper().values(NONE, good, 2, NONE).containsKey("labels"));
        assertEquals("labels must be from 0 to 2; got 3", refused(high));
        assertEquals("labels must be from 0 to 2; got -100", refused(ignored));
        manifest.getJSONObject("model").put("task", "causal-lm").put("vocabulary", 3);
        stepper().values(NONE, ignored, 2, NONE);
        assertEquals("labels must be from 0 to 2, or -100 to ignore it; got 3", refused(high));
    }

    private String refused(Tensor labels) {
        return assertThrows(ProgramInputException.class, () -> stepper().values(NONE, labels, 2, NONE)).getMessage();
    }

    @Test
    void directionsThatNoProgramWouldRead() {
        check("first.a is used in block.0, before the cut block.1", "first.a", false);
        check("gives the exact gradient of head.bias", "head.bias", false);
        check("a direction was given for other, which the bundle does not train", "other", true);
        Map<String, Tensor> shared = Collections.singletonMap("second.a", Tensor.of(new float[5], 1, 5));
        Executable step = () -> stepper().tangents(NONE, null, shared, 1, 2);
        String told = assertThrows(ProgramInputException.class, step).getMessage();
        assertTrue(told.startsWith("second.a is used in block.1, and this step goes back to block.1"), told);
    }

    @Test
    void slopesOfExamplesThatCount() {
        Tensor gradient = Tensor.of(new float[] {1, 2, 0, 0}, 2, 2); // of a loss with shares 0.5 and 0
        Tensor tangent = Tensor.of(new float[] {3, 4, 5, 6, -1, 0.5f, 7, 8}, 4, 2);
        Tensor slopes = Stepper.slopes(gradient, tangent, Tensor.of(new float[] {0.5f, 0}, 2));
        assertArrayEquals(new int[] {2, 2}, slopes.shape());
        assertArrayEquals(new float[] {22, 0, 0, 0}, slopes.floats());
        assertNull(Stepper.slopes(gradient, null, Tensor.of(new float[] {0.5f, 0}, 2)));
    }

    private void check(String expected, String name, boolean scalar) {
        Map<String, Tensor> directions = new LinkedHashMap<>();
        directions.put(name, Tensor.of(new float[2], 2));
        Executable step = () -> stepper().suffix(NONE, null, directions, 2, scalar);
        String told = assertThrows(ProgramInputException.class, step).getMessage();
        assertTrue(told.contains(expected), told);
    }

    @Test
    void shortOfMemoryAProgramIsReleasedBeforeTheNextOneRuns() throws Exception {
        JSONArray programs = manifest.getJSONObject("runtimes").getJSONObject("onnx").getJSONArray("programs");
        for (int i = 0; i < programs.length(); i++) {
            JSONObject output = programs.getJSONObject(i).getJSONArray("outputs").getJSONObject(0);
            output.put("name", "hidden");
        }
        Tensor hidden = Tensor.of(new float[6], 2, 3);
        for (boolean lowMemory : new boolean[] {true, false}) {
            StringBuilder seen = new StringBuilder();
            ProgramRunner runner = new Seen(seen);
            new Stepper(new Chain(Vectors.parsed(manifest), "onnx", 2, 4, 1), runner, lowMemory)
                    .forward(NONE, hidden, 2);
            String both = "run block.1.plain [2x4];release block.1.plain [2x4];"
                    + "run head.plain [2x4];release head.plain [2x4];";
            assertEquals(lowMemory ? both : both.replaceAll("release [^;]*;", ""), seen.toString());
        }
    }

    /** Gives each program's first input back, and writes down what it is asked. */
    private static final class Seen implements ProgramRunner {
        private final StringBuilder seen;

        Seen(StringBuilder seen) {
            this.seen = seen;
        }

        @Override
        public String runtime() {
            return "onnx";
        }

        @Override
        public Tensor[] run(ProgramSpec program, Tensor[] inputs) {
            seen.append("run ").append(program.name()).append(';');
            return new Tensor[] {inputs[0]};
        }

        @Override
        public void release(ProgramSpec program) {
            seen.append("release ").append(program.name()).append(';');
        }

        @Override
        public void close() {}
    }

    @Test
    void inputsThatAreMissingOrOfAnotherShape() {
        String missing = assertThrows(
                ProgramInputException.class, () -> stepper().forward(NONE, null, 2)).getMessage();
        assertEquals("hidden, an input of block.1.plain [2x4], is missing; expected float32 [2, 3]", missing);
        Tensor other = Tensor.of(new long[4], 2, 2);
        String wrong = assertThrows(ProgramInputException.class, () -> stepper().forward(NONE, other, 2)).getMessage();
        assertTrue(wrong.endsWith("must be float32 [2, 3], got int64 [2, 2]"), wrong);
    }
}
