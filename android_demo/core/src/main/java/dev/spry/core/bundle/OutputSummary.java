package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** An output in a few numbers. */
public final class OutputSummary {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    /** The root of its mean square. */
    public final double size;
    /** Some of it, from the first to the last at equal distances. */
    private final double[] samples;

    OutputSummary(JSONObject json) throws JSONException {
        size = json.getDouble("size");
        samples = Json.doubles(json.getJSONArray("samples"));
    }

    public double[] samples() {
        return samples.clone();
    }
}
