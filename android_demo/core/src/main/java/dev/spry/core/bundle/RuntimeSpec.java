package dev.spry.core.bundle;

import java.util.Collections;
import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What the bundle holds for one runtime. */
public final class RuntimeSpec {
    /** "none", "int8" or "int4". */
    public final String precision;
    public final List<ProgramSpec> programs;
    /** What its programs need beside their own files: weights that several share. */
    public final List<String> files;

    RuntimeSpec(JSONObject json) throws JSONException {
        precision = json.getString("precision");
        programs = Json.list(json.getJSONArray("programs"), ProgramSpec::new);
        files = json.has("files") ? Json.strings(json.getJSONArray("files")) : Collections.<String>emptyList();
    }
}
