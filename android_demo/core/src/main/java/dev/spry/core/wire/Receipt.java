package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** An accepted report; it is on disk. */
public final class Receipt {
    /** Seconds after which a check-in is worth while. */
    public final double wait;
    /** The same report had been accepted before. */
    public final boolean repeated;

    public Receipt(double wait) {
        this.wait = wait;
        repeated = false;
    }

    public Receipt(JSONObject json) throws JSONException {
        wait = Json.real(json, "wait");
        repeated = Json.truth(json, "repeated", false);
    }
}
