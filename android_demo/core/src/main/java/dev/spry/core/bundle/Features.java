package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** The features that a model hands to the linear layer of its logits. */
public final class Features {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    /** The layer's, among the head's parameters. */
    public final String weight;
    /** Empty where it has none. */
    public final String bias;

    Features(JSONObject json) throws JSONException {
        weight = json.getString("weight");
        bias = json.getString("bias");
    }
}
