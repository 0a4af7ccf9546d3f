// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** The reason why a device gives a task back. */
public final class Failure {
    public String reason;

    public Failure(String reason) {
        this.reason = reason;
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("reason", reason);
    }
}
