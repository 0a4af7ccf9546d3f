package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** What an update says beside its tensors. */
public final class Report {
    /** Where an update's safetensors header keeps it. */
    public static final String KEY = "report";

    /** The examples trained on: an update's weight. */
    public final int examples;
    public final int steps;
    /** Mean over the steps, before each. */
    public final double loss;
    public final double seconds;
    public final long peakBytes;
    /** Examples that the two counts below are of. */
    public final int heldBack;
    public final int rightGlobal;
    public final int rightPersonal;
    /** Rows of features that the moments beside the update are of. */
    public final int measured;

    public Report(
            int examples, int steps, double loss, double seconds, long peakBytes, int heldBack, int rightGlobal,
            int rightPersonal, int measured) {
        this.examples = examples;
        this.steps = steps;
        this.loss = loss;
        this.seconds = seconds;
        this.peakBytes = peakBytes;
        this.heldBack = heldBack;
        this.rightGlobal = rightGlobal;
        this.rightPersonal = rightPersonal;
        this.measured = measured;
    }

    /** Without what the examples decide: no privacy budget pays for a loss or a count. */
    public Report silent() {
        return new Report(1, steps, 0, seconds, peakBytes, 0, 0, 0, 0);
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("examples", examples)
                .put("steps", steps)
                .put("loss", loss)
                .put("seconds", Math.round(seconds * 1000) / 1000.0)
                .put("peak_bytes", peakBytes)
                .put("held_back", heldBack)
                .put("right_global", rightGlobal)
                .put("right_personal", rightPersonal)
                .put("measured", measured);
    }
}
