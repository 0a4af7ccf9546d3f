package dev.spry.core.store;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.wire.Task;

/** A job that the device took part in. */
public final class Job {
    public final String id;
    public final String name;
    public final String bundle;
    public final String runtime;

    public Job(Task task) {
        id = task.job;
        name = task.jobName;
        bundle = task.bundle;
        runtime = task.runtime;
    }

    Job(JSONObject json) throws JSONException {
        id = json.getString("id");
        name = json.getString("name");
        bundle = json.getString("bundle");
        runtime = json.getString("runtime");
    }

    JSONObject toJson() throws JSONException {
        return new JSONObject().put("id", id).put("name", name).put("bundle", bundle).put("runtime", runtime);
    }
}
