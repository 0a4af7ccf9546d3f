package dev.spry.core.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.SpryException;
import dev.spry.core.Vectors;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.wire.Task;

class PlanTest {
    @Test
    void plansAsPythonDoes() throws Exception {
        JSONObject all = Vectors.read("training.json");
        Manifest manifest = Vectors.parsed(Vectors.manifest());
        JSONArray vectors = all.getJSONArray("plans");
        assertEquals(26, vectors.length());
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            Task task = new Task(vector.getJSONObject("task"));
            long memory = vector.isNull("memory") ? Plan.NO_LIMIT : vector.getLong("memory");
            boolean alone = vector.getBoolean("alone");
            if (vector.has("error")) {
                String told = assertThrows(SpryException.class, () -> new Plan(manifest, task, memory, alone)).getMessage();
                assertTrue(told.startsWith(vector.getString("error")), told);
                continue;
            }
            Plan plan = new Plan(manifest, task, memory, alone);
            List<String> names = new ArrayList<>();
            for (ProgramSpec program : plan.programs) {
                names.add(program.method);
            }
            assertEquals(vector.getJSONArray("programs").join(","), new JSONArray(names).join(","));
            assertEquals(vector.getBoolean("low_memory"), plan.lowMemory);
            assertEquals(vector.getLong("cache_bytes"), plan.cacheBytes);
        }
    }
}
