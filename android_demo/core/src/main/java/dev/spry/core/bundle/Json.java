package dev.spry.core.bundle;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** Lists out of JSON. */
final class Json {
    private Json() {}

    interface Reader<T> {
        T read(JSONObject json) throws JSONException;
    }

    static <T> List<T> list(JSONArray json, Reader<T> reader) throws JSONException {
        List<T> found = new ArrayList<>(json.length());
        for (int i = 0; i < json.length(); i++) {
            found.add(reader.read(json.getJSONObject(i)));
        }
        return Collections.unmodifiableList(found);
    }

    static List<String> strings(JSONArray json) throws JSONException {
        List<String> found = new ArrayList<>(json.length());
        for (int i = 0; i < json.length(); i++) {
            found.add(json.getString(i));
        }
        return Collections.unmodifiableList(found);
    }

    static double[] doubles(JSONArray json) throws JSONException {
        double[] found = new double[json.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = json.getDouble(i);
        }
        return found;
    }

    static int[] ints(JSONArray json) throws JSONException {
        int[] found = new int[json.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = json.getInt(i);
        }
        return found;
    }
}
