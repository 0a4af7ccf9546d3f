package dev.spry.core.bundle;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What came of a program, where the bundle was written, on inputs that a seed gives. */
public final class Trial {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    /** The program's name. */
    public final String program;
    /** The bound of an output's error elsewhere, relative to its size. */
    public final double bound;
    /** The summary of each output. */
    public final List<OutputSummary> outcomes;

    Trial(JSONObject json) throws JSONException {
        program = json.getString("program");
        bound = json.getDouble("bound");
        outcomes = Json.list(json.getJSONArray("outcomes"), OutputSummary::new);
    }
}
