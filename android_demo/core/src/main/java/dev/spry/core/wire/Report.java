// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import java.util.Collections;
import java.util.Map;

import org.json.JSONException;
import org.json.JSONObject;

/** A client's report on its training, beside an update's tensors. */
public final class Report {
    /** Examples that the two counts below are of. */
    public long heldBack = 0L;
    public long rightGlobal = 0L;
    public long rightPersonal = 0L;
    public Map<String, Double> sumsGlobal = Collections.<String, Double>emptyMap();
    /** Sums of the task's other scores over the same predictions, by their names: losses, or shares. */
    public Map<String, Double> sumsPersonal = Collections.<String, Double>emptyMap();
    /** The examples trained on: an update's weight. */
    public long examples;
    public long steps;
    /** Mean over the steps, before each. */
    public double loss;
    public double seconds = 0.0;
    public long peakBytes = 0L;
    /** Rows of features that the moments beside the update are of. */
    public long measured = 0L;

    public Report(long examples, long steps, double loss) {
        this.examples = examples;
        this.steps = steps;
        this.loss = loss;
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("held_back", heldBack)
                .put("right_global", rightGlobal)
                .put("right_personal", rightPersonal)
                .put("sums_global", new JSONObject(sumsGlobal))
                .put("sums_personal", new JSONObject(sumsPersonal))
                .put("examples", examples)
                .put("steps", steps)
                .put("loss", loss)
                .put("seconds", seconds)
                .put("peak_bytes", peakBytes)
                .put("measured", measured);
    }
}
