package dev.spry.core.bundle;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What the bundle holds for one runtime. */
public final class RuntimeSpec {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String precision;
    public final List<ProgramSpec> programs;
    /** The files that its programs share: weights used by several. */
    public final List<String> files;
    /** The trials by which a device checks that its runtime computes as the exporter's did. */
    public final List<Trial> trials;
    /**
     * `prefill` and `decode` of each segment; apart from the others, since readers that know no generation pass them
     * by.
     */
    public final List<ProgramSpec> generation;

    RuntimeSpec(JSONObject json) throws JSONException {
        precision = json.getString("precision");
        programs = Json.list(json.getJSONArray("programs"), ProgramSpec::new);
        files = json.isNull("files") ? Collections.<String>emptyList() : Json.strings(json.getJSONArray("files"));
        trials = json.isNull("trials")
                ? Collections.<Trial>emptyList() : Json.list(json.getJSONArray("trials"), Trial::new);
        generation = json.isNull("generation")
                ? Collections.<ProgramSpec>emptyList() : Json.list(json.getJSONArray("generation"), ProgramSpec::new);
    }

    // --- by hand ---

    /** Of both kinds. */
    public List<ProgramSpec> allPrograms() {
        List<ProgramSpec> all = new ArrayList<>(programs);
        all.addAll(generation);
        return all;
    }
}
