package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** An output in a few numbers. */
public final class OutputSummary {
    /** The root of its mean square. */
    public final double size;
    private final double[] samples;

    OutputSummary(JSONObject json) throws JSONException {
        size = json.getDouble("size");
        samples = Json.doubles(json.getJSONArray("samples"));
    }

    /** Some of it, from the first to the last at equal distances. */
    public double[] samples() {
        return samples.clone();
    }
}
