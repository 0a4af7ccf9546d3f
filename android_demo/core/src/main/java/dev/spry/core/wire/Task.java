// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** One client's part in a round. */
public final class Task {
    public final String id;
    public final String job;
    public final String jobName;
    public final int round;
    /** The seed of its directions and the order of its examples. */
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
    /** The seconds for which the round takes updates. */
    public final double seconds;
    public final TrainingSettings training;
    public final ServerOptimizers optimizers;
    /** The batch to run at most: `training.batch`, or less where the device's memory is short. */
    public final int batch;
    /** Measure the global and the personal model on examples held back, and report. */
    public final boolean evaluate;
    /** Tell the moments of what reaches the head's last layer, beside the update (mode epoch). */
    public final boolean measure;
    /**
     * The norm to which the whole update is clipped, in a job with a privacy budget: a longer one is shortened, and its
     * report has no loss and no number of examples.
     */
    public final Double clip;
    /** The sum to which the update is added by secure aggregation; null where it is sent as it is. */
    public final Sum sum;
    /** Static places that have the bundle too (`edge_client.store.mirrors`). */
    public final List<String> mirrors;
    /** The sha256 of the weights to start from, where the mirrors have them too; empty where the server alone has. */
    public final String weights;
    /**
     * The time at which the version to start from was published, which tells it from one of the same number that a
     * server restored from a backup has lost. 0: not told, as of version 0, in mode iteration and by servers of an
     * earlier version.
     */
    public final double published;

    public Task(JSONObject json) throws JSONException {
        id = Json.text(json, "id", 1, 100);
        job = Json.text(json, "job", 1, 100);
        jobName = Json.text(json, "job_name", 1, 100);
        round = Json.number(json, "round", 0, 2147483647);
        seed = Json.whole(json, "seed", 0L, 9223372036854775807L);
        units = Json.numbers(json, "units", 0, 65535, 65536);
        cut = Json.number(json, "cut", 0, 65535);
        bundle = Json.text(json, "bundle", 1, 100);
        runtime = Json.text(json, "runtime", 1, 100);
        version = Json.number(json, "version", 0, 2147483647);
        iteration = Json.number(json, "iteration", 0, 2147483647);
        seconds = Json.real(json, "seconds", 0.0, 1000000000.0);
        training = new TrainingSettings(json.getJSONObject("training"));
        optimizers = new ServerOptimizers(json.getJSONObject("optimizers"));
        batch = Json.number(json, "batch", 1, 1048576);
        evaluate = Json.truth(json, "evaluate", false);
        measure = Json.truth(json, "measure", false);
        clip = json.isNull("clip") ? null : (Double) Json.real(json, "clip", 5e-324, 1e+30);
        sum = json.isNull("sum") ? null : new Sum(json.getJSONObject("sum"));
        mirrors = json.isNull("mirrors") ? Collections.<String>emptyList() : Json.texts(json, "mirrors", 1, 200, 20);
        weights = Json.text(json, "weights", 0, 64, "");
        published = Json.real(json, "published", 0.0, 1000000000000.0, 0.0);
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("id", id)
                .put("job", job)
                .put("job_name", jobName)
                .put("round", round)
                .put("seed", seed)
                .put("units", Json.array(units))
                .put("cut", cut)
                .put("bundle", bundle)
                .put("runtime", runtime)
                .put("version", version)
                .put("iteration", iteration)
                .put("seconds", seconds)
                .put("training", training.toJson())
                .put("optimizers", optimizers.toJson())
                .put("batch", batch)
                .put("evaluate", evaluate)
                .put("measure", measure)
                .putOpt("clip", clip)
                .putOpt("sum", sum == null ? null : sum.toJson())
                .put("mirrors", new JSONArray(mirrors))
                .put("weights", weights)
                .put("published", published);
    }
}
