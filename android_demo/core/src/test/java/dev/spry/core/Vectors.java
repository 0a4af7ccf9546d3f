package dev.spry.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.bundle.Manifest;

/** What the Python client computes, written down in tests/vectors. */
public final class Vectors {
    private Vectors() {}

    public static JSONObject read(String name) throws IOException, JSONException {
        return new JSONObject(new String(bytes(name), StandardCharsets.UTF_8));
    }

    /** The manifest that the vectors of training are of; tests change a copy. */
    public static JSONObject manifest() throws IOException, JSONException {
        return read("training.json").getJSONObject("manifest");
    }

    /** What a bundle with this manifest would say. */
    public static Manifest parsed(JSONObject manifest) {
        return Manifest.parse(manifest.toString().getBytes(StandardCharsets.UTF_8), "the vectors' manifest");
    }

    private static byte[] bytes(String name) throws IOException {
        return Files.readAllBytes(file(name).toPath());
    }

    /** Found from wherever a build starts its tests. */
    private static File file(String name) throws IOException {
        for (File folder = new File("").getCanonicalFile(); folder != null; folder = folder.getParentFile()) {
            File found = new File(folder, "tests/vectors/" + name);
            if (found.isFile()) {
                return found;
            }
        }
        throw new IOException("tests/vectors/" + name + " is in no folder above " + new File("").getCanonicalPath());
    }

    public static float[] floats(JSONArray json) throws JSONException {
        float[] found = new float[json.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = (float) json.getDouble(i);
        }
        return found;
    }

    public static int[] ints(JSONArray json) throws JSONException {
        int[] found = new int[json.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = (int) json.getLong(i);
        }
        return found;
    }

    /** Tensors of floats by name. */
    public static Map<String, Tensor> tensors(JSONObject json) throws JSONException {
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (Iterator<String> names = json.keys(); names.hasNext(); ) {
            String name = names.next();
            JSONObject tensor = json.getJSONObject(name);
            found.put(name, Tensor.of(floats(tensor.getJSONArray("values")), ints(tensor.getJSONArray("shape"))));
        }
        return found;
    }

    /** The same names, shapes and numbers, within `roundings` of float32. */
    public static void assertSame(Map<String, Tensor> expected, Map<String, Tensor> found, int roundings) {
        assertEquals(expected.keySet(), found.keySet());
        for (Map.Entry<String, Tensor> entry : expected.entrySet()) {
            Tensor other = found.get(entry.getKey());
            assertArrayEquals(entry.getValue().shape(), other.shape(), entry.getKey());
            float[] values = entry.getValue().floats();
            for (int i = 0; i < values.length; i++) {
                float near = roundings * Math.ulp(Math.max(Math.abs(values[i]), 1e-3f));
                assertEquals(values[i], other.floats()[i], near, entry.getKey());
            }
        }
    }
}
