// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** The optimizers of the server: one for the adapter's units, one for the head. */
public final class ServerOptimizers {
    public final ServerOptimizer units;
    public final ServerOptimizer head;

    public ServerOptimizers(JSONObject json) throws JSONException {
        units = new ServerOptimizer(Json.object(json, "units", "{}"));
        head = new ServerOptimizer(Json.object(json, "head", "{\"kind\": \"fedavg\"}"));
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("units", units.toJson())
                .put("head", head.toJson());
    }
}
