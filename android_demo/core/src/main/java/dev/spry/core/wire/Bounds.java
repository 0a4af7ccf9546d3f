package dev.spry.core.wire;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * The bounds that the protocol notes beside its fields, held by messages of a server before they are read: what
 * `edge_client/wire/bounds.py` does. Texts have no controls afterwards, wherever they are shown or kept.
 */
public final class Bounds {
    private static final int CHARACTERS = 2000;
    private static final int LONGEST_NAME = 100;
    private static final int ELEMENTS = 65_536;
    private static final double REAL = 1e30;
    private static final double LARGEST = Integer.MAX_VALUE;
    private static final Pattern CONTROLS = Pattern.compile(
            "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]|\\p{Cs}");
    private static final Set<String> NAMES = new HashSet<>(Arrays.asList(
            "id", "job", "job_name", "task", "bundle", "runtime", "estimator", "kind", "scores"));
    private static final Map<String, Bounds> NUMBERS = new HashMap<>();

    static {
        within(0, LARGEST, "round", "version", "iteration", "iterations");
        within(1, 1 << 20, "batch", "length", "epochs");
        within(0, 1 << 20, "directions");
        within(0, (1 << 16) - 1, "units", "cut", "place");
        within(1, (1 << 16) - 1, "least");
        within(0, 1 << 16, "exact_blocks");
        within(0, 0x1p63, "seed");
        within(0, 1e6, "wait");
        within(0, 1e12, "published");
        within(0, 1e9, "seconds", "noise");
        within(Double.MIN_VALUE, REAL, "clip");
        within(Double.MIN_VALUE, 1, "sigma", "tau");
        within(Double.MIN_VALUE, Math.nextDown(1e3), "learning_rate", "head_learning_rate");
        within(0, Math.nextDown(1.0), "weight_decay", "beta1", "beta2");
    }

    private final double least;
    private final double most;

    private Bounds(double least, double most) {
        this.least = least;
        this.most = most;
    }

    private static void within(double least, double most, String... names) {
        for (String name : names) {
            NUMBERS.put(name, new Bounds(least, most));
        }
    }

    /** The text with a space for each character that would steer a terminal, a log or the direction of writing. */
    public static String shown(String text) {
        return text == null ? null : CONTROLS.matcher(text).replaceAll(" ");
    }

    /** The same message, its texts without controls; JSONException where something in it is larger than it may be. */
    static JSONObject held(JSONObject message) throws JSONException {
        List<String> names = new ArrayList<>();
        for (Iterator<?> keys = message.keys(); keys.hasNext();) {
            names.add((String) keys.next());
        }
        for (String name : names) {
            message.put(name, held(message.get(name), name));
        }
        return message;
    }

    private static Object held(Object value, String name) throws JSONException {
        if (value instanceof JSONObject) {
            return held((JSONObject) value);
        }
        if (value instanceof JSONArray) {
            JSONArray list = (JSONArray) value;
            require(list.length() <= ELEMENTS, name, "has more than " + ELEMENTS + " elements");
            for (int i = 0; i < list.length(); i++) {
                list.put(i, held(list.get(i), name));
            }
        } else if (value instanceof String) {
            int most = NAMES.contains(name) ? LONGEST_NAME : CHARACTERS;
            int length = ((String) value).codePointCount(0, ((String) value).length());
            require(length <= most, name, "has more than " + most + " characters");
            require(length > 0 || most == CHARACTERS, name, "is empty");
            return shown((String) value);
        } else if (value instanceof Number) {
            double number = ((Number) value).doubleValue();
            Bounds own = NUMBERS.getOrDefault(name, new Bounds(-REAL, REAL));
            require(number >= own.least && number <= own.most, name, "is " + value);
        }
        return value;
    }

    private static void require(boolean holds, String name, String why) throws JSONException {
        if (!holds) {
            throw new JSONException(name + " " + why);
        }
    }
}
