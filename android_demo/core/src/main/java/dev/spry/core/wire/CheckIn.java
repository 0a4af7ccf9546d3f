package dev.spry.core.wire;

import java.util.Collections;
import java.util.List;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** What a device is and has at this moment; null stands for what it cannot tell. */
public final class CheckIn {
    public List<String> runtimes;
    public int examples;
    /** What training may take at most. */
    public Long memoryBytes;
    /** mains, battery or unknown. */
    public String power = "unknown";
    public boolean metered;
    /** Id or name of the only job it wants; any when left out. */
    public String job;
    /** What a training step took on average in the last round that it took part in. */
    public Double stepSeconds;
    /** The most memory that its process has taken. */
    public Long residentBytes;
    /** Whether it can add its update to those of others in secret. */
    public boolean sums;
    /** Whether it takes no other tasks. */
    public boolean onlySums;

    /** By the id of a job that its rows do not fit, why. */
    public Map<String, String> unfit = Collections.emptyMap();
    /** Whether it holds one program at a time. */
    public boolean lowMemory;

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
                .put("sums", sums)
                .put("only_sums", onlySums)
                .put("unfit", new JSONObject(unfit))
                .put("low_memory", lowMemory)
                .put("adds_noise", true);
    }
}
