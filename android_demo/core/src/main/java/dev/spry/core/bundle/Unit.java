package dev.spry.core.bundle;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What is assigned to clients as a whole: a LoRA pair, an IA3 vector, a layer's bias. Numbered by position. */
public final class Unit {
    public final String name;
    /** Where it is used, in order; a block whose weights are shared is used many times. */
    public final List<String> segments;
    public final List<Parameter> parameters;

    Unit(JSONObject json) throws JSONException {
        name = json.getString("name");
        segments = Json.strings(json.getJSONArray("segments"));
        parameters = Json.list(json.getJSONArray("parameters"), Parameter::new);
    }
}
