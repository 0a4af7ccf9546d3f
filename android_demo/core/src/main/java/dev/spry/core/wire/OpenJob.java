// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** A running job's demands on a device's rows, sent before a slot is taken. */
public final class OpenJob {
    public final String job;
    public final String jobName;
    public final String task;
    /** The job's classes, where it has any. */
    public final List<String> labels;

    public OpenJob(JSONObject json) throws JSONException {
        job = Json.text(json, "job", 1, 100);
        jobName = Json.text(json, "job_name", 1, 100);
        task = Json.text(json, "task", 1, 100);
        labels = Json.texts(json, "labels", 0, 2000, 65536);
    }
}
