// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** An accepted report; it is on disk. */
public final class Receipt {
    /** Seconds after which a check-in is worth while. */
    public final double wait;
    /** True if the same report had been accepted before. */
    public final boolean repeated;

    public Receipt(JSONObject json) throws JSONException {
        wait = Json.real(json, "wait", 0.0, 1000000.0);
        repeated = Json.truth(json, "repeated", false);
    }

    public Receipt(double wait, boolean repeated) {
        this.wait = wait;
        this.repeated = repeated;
    }
}
