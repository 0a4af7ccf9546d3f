package dev.spry.core.bundle;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.BundleException;
import dev.spry.core.Vectors;

class ManifestTest {
    @Test
    void readsWhatPythonWrites() throws Exception {
        Manifest manifest = Vectors.parsed(Vectors.manifest());
        assertEquals(Arrays.asList("a", "b", "c"), manifest.model.labels);
        assertEquals("second.b", manifest.unit(1).parameters.get(1).name);
        assertEquals(7, manifest.parameters().size());
        assertEquals("[head.weight, head.bias]", manifest.headNames().toString());
        assertEquals("[2x4, 1x4]", manifest.shapes.toString());
        ProgramSpec program = manifest.runtime("onnx").programs.get(0);
        assertEquals("embed.plain [2x4]", program.name());
        assertEquals("programs#plain0", program.key());
    }

    @Test
    void leavesOutWhatItDoesNotKnow() throws Exception {
        JSONObject newer = Vectors.manifest().put("colour", "green");
        newer.getJSONArray("units").getJSONObject(0).put("colour", "red");
        assertEquals(3, Vectors.parsed(newer).units.size());
    }

    @Test
    void saysWhatIsWrong() throws Exception {
        check("has schema 3, but this version of spry reads up to 2", Vectors.manifest().put("schema", 3));
        check("has schema 0; expected 1 to 2", Vectors.manifest().put("schema", 0));
        check("is not a manifest of schema 2", Vectors.manifest().put("units", 7));
        check("segments must go from embed to head", Vectors.manifest().put("segments", new JSONArray()));
        JSONObject unit = Vectors.manifest();
        unit.getJSONArray("units").getJSONObject(0).put("segments", new JSONArray().put("block.7"));
        check("unit first names 'block.7', which is not among the manifest's segments", unit);
        JSONObject twice = Vectors.manifest();
        twice.getJSONArray("files").put(twice.getJSONArray("files").getJSONObject(0));
        check("lists a file twice", twice);
        JSONObject program = Vectors.manifest();
        JSONArray programs = program.getJSONObject("runtimes").getJSONObject("onnx").getJSONArray("programs");
        programs.getJSONObject(3).put("file", "elsewhere");
        check("which is not among the manifest's files", program);
        JSONObject large = Vectors.manifest();
        JSONObject parameter = large.getJSONArray("head").getJSONObject(0);
        parameter.put("shape", new JSONArray().put(1 << 30).put(1 << 30));
        check("is not a manifest of schema 2", large);
    }

    @Test
    void knowsWhereTangentsEnter() throws Exception {
        JSONObject narrow = Vectors.manifest().put("schema", 2);
        JSONObject unit = narrow.getJSONArray("units").getJSONObject(0);
        String shape = "[{\"name\": \"a\", \"shape\": [2, 8]}]";
        unit.put("tangents", "bottleneck").put("parameters", new JSONArray(shape));
        Unit found = Vectors.parsed(narrow).unit(0);
        assertEquals("[5, 2]", Arrays.toString(found.tangentsOf(5).get(0).shape()));
        unit.put("token", 0);
        Manifest manifest = Vectors.parsed(narrow);
        assertEquals("[1, 2]", Arrays.toString(manifest.unit(0).tangentsOf(5).get(0).shape()));
        assertEquals("[a]", manifest.bottlenecks().keySet().toString());
        assertEquals(manifest.unit(1).parameters, manifest.unit(1).tangentsOf(5));
    }

    private static void check(String expected, JSONObject manifest) {
        String told = assertThrows(BundleException.class, () -> Vectors.parsed(manifest)).getMessage();
        assertTrue(told.contains(expected), told);
    }

    @Test
    void saysWhereAManifestIsDamagedOrMissing() {
        byte[] half = "{\"schema\": 1, \"mod".getBytes(StandardCharsets.UTF_8);
        String damaged = assertThrows(BundleException.class, () -> Manifest.parse(half, "here")).getMessage();
        assertTrue(damaged.startsWith("here is damaged"), damaged);
        File nowhere = new File("nowhere/manifest.json");
        String missing = assertThrows(BundleException.class, () -> Manifest.read(nowhere)).getMessage();
        assertTrue(missing.contains("does not exist"), missing);
    }

    @Test
    void namesTheRuntimesThereAre() throws Exception {
        Manifest manifest = Vectors.parsed(Vectors.manifest());
        String told = assertThrows(BundleException.class, () -> manifest.runtime("executorch")).getMessage();
        assertEquals("the bundle has no programs for executorch; it has onnx", told);
        assertThrows(BundleException.class, () -> manifest.unit(3));
    }
}
