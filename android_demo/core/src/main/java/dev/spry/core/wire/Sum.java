package dev.spry.core.wire;

import java.util.Collections;
import java.util.List;

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
        noise = json.isNull("noise") ? null : (Double) Json.real(json, "noise");
        units = Json.numbers(json, "units");
        scores = json.isNull("scores") ? Collections.<String>emptyList() : Json.texts(json, "scores");
    }

    /** What is added of the task's, which all of a team hold. */
    public int[] units() {
        return units.clone();
    }
}
