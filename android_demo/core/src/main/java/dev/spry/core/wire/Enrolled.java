// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** Shown once; the server keeps a hash. */
public final class Enrolled {
    public final String device;
    /** Empty where the device has a key of its own. */
    public final String secret;

    public Enrolled(JSONObject json) throws JSONException {
        device = Json.text(json, "device", 0, 2000);
        secret = Json.text(json, "secret", 0, 2000);
    }

    public Enrolled(String device, String secret) {
        this.device = device;
        this.secret = secret;
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("device", device)
                .put("secret", secret);
    }
}
