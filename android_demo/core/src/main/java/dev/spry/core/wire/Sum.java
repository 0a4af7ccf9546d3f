// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** A sum that a task's update is added to, of which the server learns the total alone. */
public final class Sum {
    public final int place;
    /** The units of the task that are added, which all of a team hold. */
    public final int[] units;
    /** Devices of whose parts a sum is opened. */
    public final int least;
    /** The scores in reports beside what is counted, in this order. */
    public final List<String> scores;
    /** Deviations of the noise, in clips of the task, that devices lay on the sum together; null: none. */
    public final Double noise;
    /** The form of the sum's messages (`edge_client.secagg.messages`). */
    public final int format;

    public Sum(JSONObject json) throws JSONException {
        place = Json.number(json, "place", 0, 65535);
        units = Json.numbers(json, "units", 0, 65535, 65536);
        least = Json.number(json, "least", 1, 65535);
        scores = json.isNull("scores") ? Collections.<String>emptyList() : Json.texts(json, "scores", 1, 100, 20);
        noise = json.isNull("noise") ? null : (Double) Json.real(json, "noise", 0.0, 1000000000.0);
        format = Json.number(json, "format", 1, 65535, 1);
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("place", place)
                .put("units", Json.array(units))
                .put("least", least)
                .put("scores", new JSONArray(scores))
                .putOpt("noise", noise)
                .put("format", format);
    }
}
