package dev.spry.core.wire;

import org.json.JSONException;
import org.json.JSONObject;

/** One client's part in a round. */
public final class Task {
    public final String id;
    public final String job;
    public final String jobName;
    public final int round;
    /** Of its directions and the order of its examples. */
    public final long seed;
    public final int[] units;
    /** The segment at which tangents start. */
    public final int cut;
    /** The sha256 of the bundle's manifest. */
    public final String bundle;
    public final String runtime;
    /** The weights to start from. */
    public final int version;
    /** Mode iteration: the first step of the round that is still open. */
    public final int iteration;
    /** How long the round takes updates. */
    public final double seconds;
    public final TrainingSettings training;
    public final ServerOptimizers optimizers;
    /** The batch to run at most: `training.batch`, or less where the device's memory is short. */
    public final int batch;
    /** Measure the global and the personal model on examples held back, and report. */
    public final boolean evaluate;
    /** Tell the moments of what reaches the head's last layer, beside the update (mode epoch). */
    public final boolean measure;
    /** How far the update may go as a whole, by its L2 norm, in a job with a privacy budget; none elsewhere. */
    public final double clip;
    /** How the update is added to others' in secret; null where it is sent as it is. */
    public final Sum sum;
    /** When the version to start from was published, in seconds since 1970; 0 where the server does not tell. */
    public final double published;

    private final JSONObject json;

    public Task(JSONObject json) throws JSONException {
        this.json = json;
        id = Json.text(json, "id");
        job = Json.text(json, "job");
        jobName = Json.text(json, "job_name");
        round = Json.number(json, "round");
        seed = Json.whole(json, "seed");
        units = Json.numbers(json, "units");
        cut = Json.number(json, "cut");
        bundle = Json.text(json, "bundle");
        runtime = Json.text(json, "runtime");
        version = Json.number(json, "version");
        iteration = Json.number(json, "iteration");
        seconds = Json.real(json, "seconds");
        training = new TrainingSettings(json.getJSONObject("training"));
        optimizers = new ServerOptimizers(json.getJSONObject("optimizers"));
        batch = Json.number(json, "batch");
        evaluate = Json.truth(json, "evaluate", false);
        measure = Json.truth(json, "measure", false);
        clip = Json.real(json, "clip", Double.POSITIVE_INFINITY);
        published = Json.real(json, "published", 0.0);
        sum = json.isNull("sum") ? null : new Sum(json.getJSONObject("sum"));
    }

    /** Whether its job keeps a privacy budget. */
    public boolean isPrivate() {
        return clip < Double.POSITIVE_INFINITY;
    }

    /** The same by another seed. */
    public Task withSeed(long drawn) {
        try {
            return new Task(new JSONObject(json.toString()).put("seed", drawn));
        } catch (JSONException error) {
            throw new IllegalStateException(error);
        }
    }

    /** As it came. */
    public JSONObject toJson() {
        return json;
    }
}
