package dev.spry.core.bundle;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** Lists out of JSON. */
final class Json {
    private Json() {}

    interface Reader<T> {
        T read(JSONObject json) throws JSONException;
    }

    interface ArrayReader<T> {
        T read(JSONArray json) throws JSONException;
    }

    interface FieldReader<T> {
        T read(JSONObject json, String key) throws JSONException;
    }

    static <T> Map<String, T> map(JSONObject json, FieldReader<T> reader) throws JSONException {
        Map<String, T> found = new LinkedHashMap<>();
        for (Iterator<String> keys = json.keys(); keys.hasNext(); ) {
            String key = keys.next();
            found.put(key, reader.read(json, key));
        }
        return Collections.unmodifiableMap(found);
    }

    static <T> List<T> arrays(JSONArray json, ArrayReader<T> reader) throws JSONException {
        List<T> found = new ArrayList<>(json.length());
        for (int i = 0; i < json.length(); i++) {
            found.add(reader.read(json.getJSONArray(i)));
        }
        return Collections.unmodifiableList(found);
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

    static List<String> strings(JSONArray json, int count) throws JSONException {
        if (json.length() != count) {
            throw new JSONException("expected " + count + " texts, got " + json.length());
        }
        return strings(json);
    }

    static List<Integer> integers(JSONArray json) throws JSONException {
        List<Integer> found = new ArrayList<>(json.length());
        for (int number : ints(json)) {
            found.add(number);
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
