package dev.spry.core.bundle;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** The base model. */
public final class Model {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String name;
    public final String architecture;
    public final String task;
    public final List<String> labels;
    public final int blocks;
    public final long parameters;
    /** Tokens that it knows; of a language model, which labels there are. */
    public final long vocabulary;

    Model(JSONObject json) throws JSONException {
        name = json.getString("name");
        architecture = json.getString("architecture");
        task = json.getString("task");
        labels = Json.strings(json.getJSONArray("labels"));
        blocks = json.getInt("blocks");
        parameters = json.getLong("parameters");
        vocabulary = json.isNull("vocabulary") ? 0 : json.getLong("vocabulary");
    }
}
