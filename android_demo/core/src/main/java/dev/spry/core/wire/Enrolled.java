package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** Who this device is; shown once, the server keeps a hash. */
public final class Enrolled {
    public final String device;
    public final String secret;

    public Enrolled(JSONObject json) throws JSONException {
        device = Json.text(json, "device");
        secret = Json.text(json, "secret");
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject().put("device", device).put("secret", secret);
    }
}
