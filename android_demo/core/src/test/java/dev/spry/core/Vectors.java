package dev.spry.core;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** What the Python client computes, written down in tests/vectors. */
public final class Vectors {
    private Vectors() {}

    public static JSONObject read(String name) throws IOException, JSONException {
        return new JSONObject(new String(bytes(name), StandardCharsets.UTF_8));
    }

    public static byte[] bytes(String name) throws IOException {
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
}
