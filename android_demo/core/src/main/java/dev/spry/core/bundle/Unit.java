package dev.spry.core.bundle;

import java.util.ArrayList;
import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What is assigned to clients as a whole: a LoRA pair, an IA3 vector, a layer's bias. Numbered by position. */
public final class Unit {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String name;
    /** The segments that use it, in order; a block whose weights are shared is used many times. */
    public final List<String> segments;
    public final List<Parameter> parameters;
    public final String tangents;
    /** The only token that a bottleneck sees, where the model reads no other's result. */
    public final Integer token;

    Unit(JSONObject json) throws JSONException {
        name = json.getString("name");
        segments = Json.strings(json.getJSONArray("segments"));
        parameters = Json.list(json.getJSONArray("parameters"), Parameter::new);
        tangents = json.isNull("tangents") ? "weights" : json.getString("tangents");
        token = json.isNull("token") ? null : json.getInt("token");
    }

    // --- by hand ---

    /** Whether its tangents enter where its first factor has made few numbers of a token, not along its weights. */
    public boolean atBottleneck() {
        return tangents.equals("bottleneck");
    }

    /** What a direction of it consists of, in texts of so many tokens: weights, or each token's few numbers. */
    public List<Parameter> tangentsOf(int length) {
        if (!atBottleneck()) {
            return parameters;
        }
        List<Parameter> found = new ArrayList<>();
        for (Parameter parameter : parameters) {
            found.add(new Parameter(parameter.name, token != null ? 1 : length, parameter.shape()[0]));
        }
        return found;
    }
}
