// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** The server's optimizer of weights by the mean change that clients report; in mode iteration clients repeat it. */
public final class ServerOptimizer {
    /** One of `edge_client.training.server_optimizers`, or of another distribution. */
    public final String kind;
    /** The server's rate; fedavg takes the mean as it is. */
    public final double learningRate;
    /** The decay rate of the first moment. */
    public final double beta1;
    /** The decay rate of the second moment. */
    public final double beta2;
    /** Added to the root of that mean: smaller changes make smaller steps. */
    public final double tau;

    public ServerOptimizer(JSONObject json) throws JSONException {
        kind = Json.text(json, "kind", 1, 100, "fedyogi");
        learningRate = Json.real(json, "learning_rate", 5e-324, 999.9999999999999, 0.001);
        beta1 = Json.real(json, "beta1", 0.0, 0.9999999999999999, 0.9);
        beta2 = Json.real(json, "beta2", 0.0, 0.9999999999999999, 0.99);
        tau = Json.real(json, "tau", 5e-324, 1.0, 0.001);
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("kind", kind)
                .put("learning_rate", learningRate)
                .put("beta1", beta1)
                .put("beta2", beta2)
                .put("tau", tau);
    }
}
