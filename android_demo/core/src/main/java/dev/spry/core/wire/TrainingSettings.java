// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** The training of a job's clients; the defaults are this project's, the paper's are a preset of the server. */
public final class TrainingSettings {
    public final String mode;
    /** One of `edge_client.estimators.registry`, or of another distribution. */
    public final String estimator;
    public final int batch;
    public final int length;
    /** Passes over the client's examples in a round (mode epoch). */
    public final int epochs;
    /** Steps in a round; in mode epoch 0 leaves the number to `epochs`, in mode iteration 0 means 1. */
    public final int iterations;
    /**
     * K: directions per example (forward) or perturbations per batch (central). 0 leaves it to the server: as many as
     * the numbers in a client's units. A task always has some.
     */
    public final int directions;
    public final String kind;
    /** Each example of a batch moves along directions of its own (forward). */
    public final boolean perExample;
    /** The head's gradient: exact, estimated from its own derivative, or from one derivative of units and head. */
    public final String head;
    /** The step of a central difference. */
    public final double sigma;
    /** The client's own, which makes its steps. */
    public final String optimizer;
    public final double learningRate;
    /** The head's; `learning_rate` when left out. */
    public final Double headLearningRate;
    /** The weight decay of a step, times its rate (adamw). */
    public final double weightDecay;
    /** The model's last blocks that a step goes back through (mixed). */
    public final int exactBlocks;
    /** Short examples stand together in one sequence (language models). */
    public final boolean pack;

    public TrainingSettings(JSONObject json) throws JSONException {
        mode = Json.text(json, "mode", 0, 2000, "epoch");
        estimator = Json.text(json, "estimator", 1, 100, "forward");
        batch = Json.number(json, "batch", 1, 1048576, 8);
        length = Json.number(json, "length", 1, 1048576, 64);
        epochs = Json.number(json, "epochs", 1, 1048576, 1);
        iterations = Json.number(json, "iterations", 0, 2147483647, 0);
        directions = Json.number(json, "directions", 0, 1048576, 1);
        kind = Json.text(json, "kind", 0, 2000, "normal");
        perExample = Json.truth(json, "per_example", true);
        head = Json.text(json, "head", 0, 2000, "exact");
        sigma = Json.real(json, "sigma", 5e-324, 1.0, 0.001);
        optimizer = Json.text(json, "optimizer", 0, 2000, "sgd");
        learningRate = Json.real(json, "learning_rate", 5e-324, 999.9999999999999, 0.01);
        headLearningRate = json.isNull("head_learning_rate")
                ? null : (Double) Json.real(json, "head_learning_rate", 5e-324, 999.9999999999999);
        weightDecay = Json.real(json, "weight_decay", 0.0, 0.9999999999999999, 0.0);
        exactBlocks = Json.number(json, "exact_blocks", 0, 65536, 1);
        pack = Json.truth(json, "pack", false);
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("mode", mode)
                .put("estimator", estimator)
                .put("batch", batch)
                .put("length", length)
                .put("epochs", epochs)
                .put("iterations", iterations)
                .put("directions", directions)
                .put("kind", kind)
                .put("per_example", perExample)
                .put("head", head)
                .put("sigma", sigma)
                .put("optimizer", optimizer)
                .put("learning_rate", learningRate)
                .putOpt("head_learning_rate", headLearningRate)
                .put("weight_decay", weightDecay)
                .put("exact_blocks", exactBlocks)
                .put("pack", pack);
    }
}
