package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** A trainable tensor under its name in a PEFT adapter file. */
public final class Parameter {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String name;
    private final int[] shape;

    Parameter(JSONObject json) throws JSONException {
        name = json.getString("name");
        shape = Json.ints(json.getJSONArray("shape"));
        check();
    }

    public int[] shape() {
        return shape.clone();
    }

    // --- by hand ---

    Parameter(String name, int... shape) {
        this.name = name;
        this.shape = shape;
    }

    public int size() {
        int count = 1;
        for (int length : shape) {
            count = Math.multiplyExact(count, length);
        }
        return count;
    }

    private void check() {
        size();
    }
}
