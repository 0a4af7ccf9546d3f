package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** A task, or the seconds to wait and why there is none. */
public final class CheckedIn {
    /** null where there is none. */
    public final Task task;
    public final double wait;
    public final String reason;

    public CheckedIn(JSONObject json) throws JSONException {
        task = json.isNull("task") ? null : new Task(json.getJSONObject("task"));
        wait = Json.real(json, "wait", 0.0);
        reason = Json.text(json, "reason", "");
    }
}
