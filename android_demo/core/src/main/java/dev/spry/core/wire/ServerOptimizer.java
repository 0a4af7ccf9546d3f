package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** How the server moves weights by the mean change that clients report; in mode iteration clients repeat it. */
public final class ServerOptimizer {
    /** A `case` of `Optimizers`, or fedavg. */
    public final String kind;
    public final double learningRate;
    public final double beta1;
    public final double beta2;
    public final double tau;

    public ServerOptimizer(JSONObject json, String kind) throws JSONException {
        this.kind = Json.text(json, "kind", kind);
        learningRate = Json.real(json, "learning_rate", 1e-3);
        beta1 = Json.real(json, "beta1", 0.9);
        beta2 = Json.real(json, "beta2", 0.99);
        tau = Json.real(json, "tau", 1e-3);
    }
}
