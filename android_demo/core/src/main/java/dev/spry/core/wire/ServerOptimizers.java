package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** One for the adapter's units, one for the head. */
public final class ServerOptimizers {
    public final ServerOptimizer units;
    public final ServerOptimizer head;

    public ServerOptimizers(JSONObject json) throws JSONException {
        units = new ServerOptimizer(Json.object(json, "units"), "fedyogi");
        head = new ServerOptimizer(Json.object(json, "head"), "fedavg");
    }
}
