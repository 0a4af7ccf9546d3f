package dev.spry.core.wire;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * Fields of a message: one of another type or beyond its bounds is refused, one that is missing or null takes its
 * default. Texts have no controls afterwards, wherever they are shown or kept.
 */
public final class Json {
    private Json() {
    }

    public static JSONObject parse(byte[] data) throws JSONException {
        try {
            return new JSONObject(new String(data, StandardCharsets.UTF_8));
        } catch (StackOverflowError error) {
            throw new JSONException("it is nested too deep");
        }
    }

    static JSONArray parseList(byte[] data) throws JSONException {
        try {
            return new JSONArray(new String(data, StandardCharsets.UTF_8));
        } catch (StackOverflowError error) {
            throw new JSONException("it is nested too deep");
        }
    }

    public static byte[] bytes(JSONObject json) {
        return json.toString().getBytes(StandardCharsets.UTF_8);
    }

    static String text(JSONObject json, String name, int least, int most, String without) throws JSONException {
        return json.isNull(name) ? without : text(json, name, least, most);
    }

    static String text(JSONObject json, String name, int least, int most) throws JSONException {
        return bounded(required(json, name, String.class), name, least, most);
    }

    static boolean truth(JSONObject json, String name, boolean without) throws JSONException {
        return json.isNull(name) ? without : required(json, name, Boolean.class);
    }

    static double real(JSONObject json, String name, double least, double most, double without) throws JSONException {
        return json.isNull(name) ? without : real(json, name, least, most);
    }

    static double real(JSONObject json, String name, double least, double most) throws JSONException {
        double value = required(json, name, Number.class).doubleValue();
        require(value >= least && value <= most, name, "is " + value);
        return value;
    }

    static int number(JSONObject json, String name, int least, int most, int without) throws JSONException {
        return json.isNull(name) ? without : number(json, name, least, most);
    }

    static int number(JSONObject json, String name, int least, int most) throws JSONException {
        return (int) whole(json, name, least, most);
    }

    static long whole(JSONObject json, String name, long least, long most, long without) throws JSONException {
        return json.isNull(name) ? without : whole(json, name, least, most);
    }

    static long whole(JSONObject json, String name, long least, long most) throws JSONException {
        return whole(json.get(name), name, least, most);
    }

    static int[] numbers(JSONObject json, String name, int least, int most, int elements) throws JSONException {
        JSONArray given = list(json, name, elements);
        int[] found = new int[given.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = (int) whole(given.get(i), name, least, most);
        }
        return found;
    }

    static List<String> texts(JSONObject json, String name, int least, int most, int elements) throws JSONException {
        JSONArray given = list(json, name, elements);
        List<String> found = new ArrayList<>();
        for (int i = 0; i < given.length(); i++) {
            require(given.get(i) instanceof String, name, "must be texts, got " + given.get(i));
            found.add(bounded(given.getString(i), name, least, most));
        }
        return Collections.unmodifiableList(found);
    }

    /** An object; another where there is none. */
    static JSONObject object(JSONObject json, String name, String without) throws JSONException {
        return json.isNull(name) ? new JSONObject(without) : required(json, name, JSONObject.class);
    }

    static JSONArray array(int[] numbers) {
        JSONArray found = new JSONArray();
        for (int number : numbers) {
            found.put(number);
        }
        return found;
    }

    private static String bounded(String text, String name, int least, int most) throws JSONException {
        int length = text.codePointCount(0, text.length());
        require(length >= least, name, "is shorter than " + least);
        require(length <= most, name, "is longer than " + most);
        return Bounds.shown(text);
    }

    private static long whole(Object value, String name, long least, long most) throws JSONException {
        require(value instanceof Integer || value instanceof Long, name, "must be a whole number, got " + value);
        long found = ((Number) value).longValue();
        require(found >= least && found <= most, name, "is " + found);
        return found;
    }

    private static JSONArray list(JSONObject json, String name, int elements) throws JSONException {
        JSONArray given = required(json, name, JSONArray.class);
        require(given.length() <= elements, name, "has more than " + elements + " elements");
        return given;
    }

    private static <T> T required(JSONObject json, String name, Class<T> kind) throws JSONException {
        Object value = json.get(name);
        String found = value.getClass().getSimpleName();
        require(kind.isInstance(value), name, "must be a " + kind.getSimpleName() + ", got " + found);
        return kind.cast(value);
    }

    private static void require(boolean holds, String name, String why) throws JSONException {
        if (!holds) {
            throw new JSONException(name + " " + why);
        }
    }
}
