// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** A task, or the seconds to wait and why there is none. */
public final class CheckedIn {
    public final Task task;
    public final double wait;
    public final String reason;

    public CheckedIn(JSONObject json) throws JSONException {
        task = json.isNull("task") ? null : new Task(json.getJSONObject("task"));
        wait = Json.real(json, "wait", 0.0, 1000000.0, 0.0);
        reason = Json.text(json, "reason", 0, 2000, "");
    }
}
