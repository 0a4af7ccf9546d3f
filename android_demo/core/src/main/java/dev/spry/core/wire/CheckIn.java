// Written by android_demo/core/messages.py from edge_client/wire/protocol.py: change that, and run it.
package dev.spry.core.wire;

import java.util.Collections;
import java.util.List;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** A device's state at this moment: its runtimes, memory, rows and conditions. */
public final class CheckIn {
    public List<String> runtimes;
    public long examples = 0L;
    /** The most memory that training may take; null where the device cannot tell. */
    public Long memoryBytes = null;
    public String power = "unknown";
    public boolean metered = false;
    /** Id or name of the only job it wants; any when left out. */
    public String job = null;
    /** The mean seconds of a training step in the last round that it took part in. */
    public Double stepSeconds = null;
    /** The most memory that its process has taken. */
    public Long residentBytes = null;
    /** True if it holds one program at a time. */
    public boolean lowMemory = false;
    /** The reason for each job that its rows do not fit, by its id. */
    public Map<String, String> unfit = Collections.<String, String>emptyMap();
    /** True if it can add its update to those of others by secure aggregation. */
    public boolean sums = false;
    /** True if it takes no task whose update the server would see. */
    public boolean onlySums = false;
    /** True if it can add its share of a private sum's noise to its update. */
    public boolean addsNoise = false;

    public CheckIn(List<String> runtimes) {
        this.runtimes = runtimes;
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("runtimes", new JSONArray(runtimes))
                .put("examples", examples)
                .putOpt("memory_bytes", memoryBytes)
                .put("power", power)
                .put("metered", metered)
                .putOpt("job", job)
                .putOpt("step_seconds", stepSeconds)
                .putOpt("resident_bytes", residentBytes)
                .put("low_memory", lowMemory)
                .put("unfit", new JSONObject(unfit))
                .put("sums", sums)
                .put("only_sums", onlySums)
                .put("adds_noise", addsNoise);
    }
}
