package dev.spry.core.bundle;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What came of a program, where the bundle was written, on inputs that a seed gives. */
public final class Trial {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    /** Its name. */
    public final String program;
    /** How far an output may be off elsewhere, in parts of its size. */
    public final double bound;
    /** Of each output. */
    public final List<OutputSummary> outcomes;

    Trial(JSONObject json) throws JSONException {
        program = json.getString("program");
        bound = json.getDouble("bound");
        outcomes = Json.list(json.getJSONArray("outcomes"), OutputSummary::new);
    }
}
