package dev.spry.core.wire;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** Fields of a message: one of another type is refused, one that is missing or null takes its default. */
public final class Json {
    private Json() {
    }

    public static JSONObject parse(byte[] data) throws JSONException {
        try {
            return new JSONObject(new String(data, java.nio.charset.StandardCharsets.UTF_8));
        } catch (StackOverflowError error) {
            throw new JSONException("it is nested too deep");
        }
    }

    static JSONArray parseList(byte[] data) throws JSONException {
        try {
            return new JSONArray(new String(data, java.nio.charset.StandardCharsets.UTF_8));
        } catch (StackOverflowError error) {
            throw new JSONException("it is nested too deep");
        }
    }

    public static byte[] bytes(JSONObject json) {
        return json.toString().getBytes(java.nio.charset.StandardCharsets.UTF_8);
    }

    static String text(JSONObject json, String name, String without) throws JSONException {
        return json.isNull(name) ? without : required(json, name, String.class);
    }

    static String text(JSONObject json, String name) throws JSONException {
        return required(json, name, String.class);
    }

    static boolean truth(JSONObject json, String name, boolean without) throws JSONException {
        return json.isNull(name) ? without : required(json, name, Boolean.class);
    }

    static double real(JSONObject json, String name, double without) throws JSONException {
        return json.isNull(name) ? without : required(json, name, Number.class).doubleValue();
    }

    static double real(JSONObject json, String name) throws JSONException {
        return required(json, name, Number.class).doubleValue();
    }

    static int number(JSONObject json, String name, int without) throws JSONException {
        return json.isNull(name) ? without : number(json, name);
    }

    static int number(JSONObject json, String name) throws JSONException {
        long value = whole(json, name);
        if (value != (int) value) {
            throw new JSONException(name + " must be a number of 32 bits, got " + value);
        }
        return (int) value;
    }

    static long whole(JSONObject json, String name) throws JSONException {
        Number value = required(json, name, Number.class);
        if (value instanceof Integer || value instanceof Long) {
            return value.longValue();
        }
        throw new JSONException(name + " must be a whole number, got " + value);
    }

    static int[] numbers(JSONObject json, String name) throws JSONException {
        JSONArray given = required(json, name, JSONArray.class);
        int[] found = new int[given.length()];
        for (int i = 0; i < found.length; i++) {
            if (!(given.get(i) instanceof Integer)) {
                throw new JSONException(name + " must be whole numbers, got " + given.get(i));
            }
            found[i] = given.getInt(i);
        }
        return found;
    }

    static List<String> texts(JSONObject json, String name) throws JSONException {
        JSONArray given = required(json, name, JSONArray.class);
        List<String> found = new ArrayList<>();
        for (int i = 0; i < given.length(); i++) {
            if (!(given.get(i) instanceof String)) {
                throw new JSONException(name + " must be texts, got " + given.get(i));
            }
            found.add(given.getString(i));
        }
        return Collections.unmodifiableList(found);
    }

    /** An object; an empty one where there is none. */
    static JSONObject object(JSONObject json, String name) throws JSONException {
        return json.isNull(name) ? new JSONObject() : required(json, name, JSONObject.class);
    }

    private static <T> T required(JSONObject json, String name, Class<T> kind) throws JSONException {
        Object value = json.get(name);
        if (!kind.isInstance(value)) {
            String found = value.getClass().getSimpleName();
            throw new JSONException(name + " must be a " + kind.getSimpleName() + ", got " + found);
        }
        return kind.cast(value);
    }
}
