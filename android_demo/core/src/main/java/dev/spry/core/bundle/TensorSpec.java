package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** An input or output of a program; dtypes are numpy's names. */
public final class TensorSpec {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String name;
    public final String dtype;
    private final int[] shape;

    TensorSpec(JSONObject json) throws JSONException {
        name = json.getString("name");
        dtype = json.getString("dtype");
        shape = Json.ints(json.getJSONArray("shape"));
    }

    public int[] shape() {
        return shape.clone();
    }
}
