package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** How every client of a job trains: `protocol.Training`, its meanings and its defaults. */
public final class TrainingSettings {
    public final String mode;
    public final String estimator;
    public final int batch;
    public final int length;
    /** Passes over the client's examples in a round (mode epoch). */
    public final int epochs;
    /** Steps in a round; in mode epoch 0 leaves the number to `epochs`, in mode iteration 0 means 1. */
    public final int iterations;
    /** K: directions per example (forward) or perturbations per batch (central). */
    public final int directions;
    /** Of directions: normal, rademacher, … */
    public final String kind;
    public final boolean perExample;
    /** The head's gradient: exact, apart or joint. */
    public final String head;
    public final double sigma;
    public final String optimizer;
    public final double learningRate;
    /** The head's, settled: that of the units where the job leaves it out. */
    public final double headLearningRate;
    public final double weightDecay;
    /** The model's last blocks that a step goes back through (mixed). */
    public final int exactBlocks;
    /** Whether short texts of a language model share sequences. */
    public final boolean pack;

    public TrainingSettings(JSONObject json) throws JSONException {
        mode = Json.text(json, "mode", "epoch");
        estimator = Json.text(json, "estimator", "forward");
        batch = Json.number(json, "batch", 8);
        length = Json.number(json, "length", 64);
        epochs = Json.number(json, "epochs", 1);
        iterations = Json.number(json, "iterations", 0);
        directions = Json.number(json, "directions", 1);
        kind = Json.text(json, "kind", "normal");
        perExample = Json.truth(json, "per_example", true);
        head = Json.text(json, "head", "exact");
        sigma = Json.real(json, "sigma", 1e-3);
        optimizer = Json.text(json, "optimizer", "sgd");
        learningRate = Json.real(json, "learning_rate", 1e-2);
        headLearningRate = Json.real(json, "head_learning_rate", learningRate);
        weightDecay = Json.real(json, "weight_decay", 0.0);
        exactBlocks = Json.number(json, "exact_blocks", 1);
        pack = Json.truth(json, "pack", false);
    }
}
