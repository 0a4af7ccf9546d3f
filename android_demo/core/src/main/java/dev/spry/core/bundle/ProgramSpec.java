package dev.spry.core.bundle;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** One program of one segment at one shape, inputs and outputs in the order the file wants them. */
public final class ProgramSpec {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String segment;
    public final String kind;
    public final int batch;
    public final int length;
    /** K; 0 where the program carries no tangents. */
    public final int directions;
    public final String file;
    /** The method of a file that holds several programs; empty where it holds one. */
    public final String method;
    public final List<TensorSpec> inputs;
    public final List<TensorSpec> outputs;
    public final long flops;
    /** Memory that loading the program takes, measured. */
    public final long loadBytes;
    /** Highest memory above that while it runs, measured. */
    public final long peakBytes;

    ProgramSpec(JSONObject json) throws JSONException {
        segment = json.getString("segment");
        kind = json.getString("kind");
        batch = json.getInt("batch");
        length = json.getInt("length");
        directions = json.getInt("directions");
        file = json.getString("file");
        method = json.getString("method");
        inputs = Json.list(json.getJSONArray("inputs"), TensorSpec::new);
        outputs = Json.list(json.getJSONArray("outputs"), TensorSpec::new);
        flops = json.getLong("flops");
        loadBytes = json.getLong("load_bytes");
        peakBytes = json.getLong("peak_bytes");
    }

    // --- by hand ---

    public String name() {
        return segment + "." + kind + " [" + batch + "x" + length + (directions == 0 ? "" : ", K=" + directions) + "]";
    }

    /** One program among all of a runtime. */
    public String key() {
        return file + "#" + method;
    }
}
