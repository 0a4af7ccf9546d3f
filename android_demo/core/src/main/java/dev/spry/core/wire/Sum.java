package dev.spry.core.wire;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** A sum that a task's update is added to, of which the server learns the total alone. */
public final class Sum {
    public final int place;
    /** Devices of whose parts a sum is opened. */
    public final int least;
    /** What reports say beside what is counted, in this order. */
    public final List<String> scores;
    /** Deviations of the noise, in clips of the task, that devices lay on the sum together; null for none. */
    public final Double noise;
    private final int[] units;

    Sum(JSONObject json) throws JSONException {
        place = Json.number(json, "place");
        least = Json.number(json, "least");
        noise = json.isNull("noise") ? null : (Double) json.getDouble("noise");
        JSONArray numbers = json.getJSONArray("units");
        units = new int[numbers.length()];
        for (int at = 0; at < units.length; at++) {
            units[at] = numbers.getInt(at);
        }
        List<String> names = new ArrayList<>();
        JSONArray told = json.isNull("scores") ? new JSONArray() : json.getJSONArray("scores");
        for (int at = 0; at < told.length(); at++) {
            names.add(told.getString(at));
        }
        scores = Collections.unmodifiableList(names);
    }

    /** What is added of the task's, which all of a team hold. */
    public int[] units() {
        return units.clone();
    }
}
