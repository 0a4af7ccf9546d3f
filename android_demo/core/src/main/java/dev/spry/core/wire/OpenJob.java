package dev.spry.core.wire;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What a running job asks of a device's rows, to be told before a place is taken. */
public final class OpenJob {
    public final String job;
    public final String jobName;
    public final String task;
    /** Its classes, where it has any. */
    public final List<String> labels;

    public OpenJob(JSONObject json) throws JSONException {
        job = Json.text(json, "job");
        jobName = Json.text(json, "job_name");
        task = Json.text(json, "task");
        labels = Json.texts(json, "labels");
    }
}
