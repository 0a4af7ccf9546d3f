package dev.spry.core.bundle;

import java.util.ArrayList;
import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What is assigned to clients as a whole: a LoRA pair, an IA3 vector, a layer's bias. Numbered by position. */
public final class Unit {
    public final String name;
    /** Where it is used, in order; a block whose weights are shared is used many times. */
    public final List<String> segments;
    public final List<Parameter> parameters;
    /** Whether its tangents enter where its first factor has made few numbers of a token, not along its weights. */
    public final boolean atBottleneck;
    /** Whether a bottleneck sees one token alone, as the model reads no other's result. */
    public final boolean ofOneToken;

    Unit(JSONObject json) throws JSONException {
        name = json.getString("name");
        segments = Json.strings(json.getJSONArray("segments"));
        parameters = Json.list(json.getJSONArray("parameters"), Parameter::new);
        atBottleneck = json.optString("tangents", "weights").equals("bottleneck");
        ofOneToken = !json.isNull("token");
    }

    /** What a direction of it consists of, in texts of so many tokens: weights, or each token's few numbers. */
    public List<Parameter> tangentsOf(int length) {
        if (!atBottleneck) {
            return parameters;
        }
        List<Parameter> found = new ArrayList<>();
        for (Parameter parameter : parameters) {
            found.add(new Parameter(parameter.name, ofOneToken ? 1 : length, parameter.shape()[0]));
        }
        return found;
    }
}
