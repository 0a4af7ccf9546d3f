package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** How the model is adapted, in PEFT's terms. */
public final class Adapter {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String method;
    /** The adapter's and head's values before training: safetensors under PEFT's keys. */
    public final String file;

    Adapter(JSONObject json) throws JSONException {
        method = json.getString("method");
        file = json.getString("file");
    }
}
