package dev.spry.core.bundle;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What the bundle holds for one runtime. */
public final class RuntimeSpec {
    /** "none", "int8" or "int4". */
    public final String precision;
    public final List<ProgramSpec> programs;
    /** Those that generate text; none where the bundle cannot. */
    public final List<ProgramSpec> generation;
    /** What its programs need beside their own files: weights that several share. */
    public final List<String> files;
    /** By which a device finds out whether its runtime computes as the exporter's did. */
    public final List<Trial> trials;

    RuntimeSpec(JSONObject json) throws JSONException {
        precision = json.getString("precision");
        programs = Json.list(json.getJSONArray("programs"), ProgramSpec::new);
        generation = json.has("generation")
                ? Json.list(json.getJSONArray("generation"), ProgramSpec::new)
                : Collections.<ProgramSpec>emptyList();
        files = json.has("files") ? Json.strings(json.getJSONArray("files")) : Collections.<String>emptyList();
        trials = json.has("trials")
                ? Json.list(json.getJSONArray("trials"), Trial::new)
                : Collections.<Trial>emptyList();
    }

    /** Of both kinds. */
    public List<ProgramSpec> allPrograms() {
        List<ProgramSpec> all = new ArrayList<>(programs);
        all.addAll(generation);
        return all;
    }
}
