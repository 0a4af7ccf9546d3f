package dev.spry.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.RuntimeSpec;
import dev.spry.core.bundle.Trial;
import dev.spry.core.store.Tried;

/** A runtime that computes what it is told, held against what Python noted. */
class TrialsTest {
    @TempDir
    File folder;
    private JSONObject vectors;
    private RuntimeSpec spec;
    private Said runner;

    @BeforeEach
    void aProgramWithItsTrial() throws Exception {
        vectors = Vectors.read("training.json").getJSONObject("trials");
        JSONObject manifest = Vectors.manifest();
        manifest.getJSONObject("runtimes").getJSONObject("onnx")
                .put("programs", new JSONArray().put(vectors.getJSONObject("program")))
                .put("trials", new JSONArray().put(vectors.getJSONObject("trial")));
        spec = Vectors.parsed(manifest).runtime("onnx");
        runner = new Said();
    }

    /** The case's results, and whether Python takes them. */
    private boolean take(JSONObject one) throws Exception {
        runner.results = Vectors.tensors(one.getJSONObject("results")).values().toArray(new Tensor[0]);
        boolean right = true;
        for (int i = 0; i < one.getJSONArray("errors").length(); i++) {
            right &= one.getJSONArray("errors").getDouble(i) <= spec.trials.get(0).bound;
        }
        return right;
    }

    private static final class Said implements ProgramRunner {
        Tensor[] results;
        Map<String, Tensor> given;
        final List<String> released = new ArrayList<>();

        @Override
        public String runtime() {
            return "onnx";
        }

        @Override
        public Tensor[] run(ProgramSpec program, Tensor[] inputs) {
            given = new LinkedHashMap<>();
            for (int i = 0; i < inputs.length; i++) {
                given.put(program.inputs.get(i).name, inputs[i]);
            }
            return results;
        }

        @Override
        public void release(ProgramSpec program) {
            released.add(program.name());
        }

        @Override
        public void close() {}
    }

    @Test
    void whatGoesInIsWhatPythonDrew() throws Exception {
        take(vectors.getJSONArray("cases").getJSONObject(0));
        Trials.check(runner, spec, null);
        assertArrayEquals(new long[] {1, 1, 1, 1, 1, 1, 1, 1}, runner.given.remove("labels").longs());
        Map<String, Tensor> expected = Vectors.tensors(vectors.getJSONObject("inputs"));
        expected.remove("labels");
        Vectors.assertSame(expected, runner.given, 2);
        assertEquals(Collections.singletonList("head.vjp [2x4]"), runner.released);
    }

    @Test
    void whatPythonRefusesIsRefused() throws Exception {
        int refused = 0;
        for (int i = 0; i < vectors.getJSONArray("cases").length(); i++) {
            if (take(vectors.getJSONArray("cases").getJSONObject(i))) {
                Trials.check(runner, spec, null);
                continue;
            }
            refused++;
            String told = assertThrows(WrongResultsException.class, () -> Trials.check(runner, spec, null)).getMessage();
            assertTrue(told.startsWith("the runtime onnx gives wrong results here: "), told);
            assertTrue(told.contains(" of head.vjp [2x4] is off by "), told);
            assertTrue(told.contains(" of its size, at most 0.001 was expected; update the app"), told);
        }
        assertEquals(4, refused);
    }

    @Test
    void resultsAreAsFarOffAsPythonSays() throws Exception {
        Trial trial = spec.trials.get(0);
        double least = Trials.least(trial);
        for (int i = 0; i < vectors.getJSONArray("cases").length(); i++) {
            JSONObject one = vectors.getJSONArray("cases").getJSONObject(i);
            take(one);
            for (int j = 0; j < trial.outcomes.size(); j++) {
                if (j != 1) { // of logits a part is compared
                    double found = Trials.error(runner.results[j].floats(), trial.outcomes.get(j), least);
                    assertEquals(one.getJSONArray("errors").getDouble(j), found, 1e-5);
                }
            }
        }
    }

    @Test
    void whatTakesMoreMemoryThanThereIsIsNotRun() throws Exception {
        take(vectors.getJSONArray("cases").getJSONObject(0));
        ProgramSpec program = spec.programs.get(0);
        long least = program.loadBytes + program.peakBytes;
        assertTrue(Trials.check(runner, spec, least));
        runner.given = null;
        assertFalse(Trials.check(runner, spec, least - 1));
        assertNull(runner.given);
    }

    @Test
    void whatIsNoNumberIsRefused() throws Exception {
        take(vectors.getJSONArray("cases").getJSONObject(0));
        runner.results[2].floats()[3] = Float.NaN;
        String told = assertThrows(WrongResultsException.class, () -> Trials.check(runner, spec, null)).getMessage();
        assertTrue(told.contains("g:second.a of head.vjp [2x4] is off by Infinity"), told);
    }

    @Test
    void aVersionIsKeptBesideThoseOfOtherRuntimes() {
        Tried tried = new Tried(folder);
        assertFalse(tried.has("onnx", "one"));
        tried.add("onnx", "one");
        tried.add("executorch", "two");
        assertTrue(tried.has("onnx", "one") && tried.has("executorch", "two"));
        assertFalse(tried.has("onnx", "two"));
    }

    @Test
    void whereNothingCanBeWrittenItIsTriedAgain() {
        Tried tried = new Tried(new File("/proc/self"));
        tried.add("onnx", "one");
        assertFalse(tried.has("onnx", "one"));
    }
}
