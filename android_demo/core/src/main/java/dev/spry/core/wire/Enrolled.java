package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** Who this device is. */
public final class Enrolled {
    public final String device;
    /** What it sends to prove that, of which the server keeps a hash; empty where it signs by a key of its own. */
    public final String secret;

    public Enrolled(String device, String secret) {
        this.device = device;
        this.secret = secret;
    }

    public Enrolled(JSONObject json) throws JSONException {
        device = Json.text(json, "device");
        secret = Json.text(json, "secret");
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject().put("device", device).put("secret", secret);
    }
}
