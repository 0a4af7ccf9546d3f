package dev.spry.core.bundle;

import java.util.Collections;
import java.util.List;
import java.util.Map;

import org.json.JSONException;
import org.json.JSONObject;

/** A chat template that writes fixed words around messages, by the roles of the two that meet. */
public final class Turns {
    /** In the place of a role: where a conversation begins and ends. */
    public static final String EDGE = "";

    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    /** The text between a message of one role and of another; "" is where a conversation begins, and its end. */
    public final Map<String, Map<String, String>> between;
    /** The text after the user's last message where an answer is asked for. */
    public final String asking;
    /** The roles whose messages lose white space around. */
    public final List<String> trimmed;
    /** The text that is learnt before an answer's own words, and after them; null where that is not always the same. */
    public final List<String> answers;
    /** The form of thoughts; null where answers are written as they are. */
    public final Thoughts thoughts;

    Turns(JSONObject json) throws JSONException {
        between = Json.map(json.getJSONObject("between"), (map, key) -> Json.map(map.getJSONObject(key),
                JSONObject::getString));
        asking = json.getString("asking");
        trimmed = json.isNull("trimmed") ? Collections.<String>emptyList() : Json.strings(json.getJSONArray("trimmed"));
        answers = json.isNull("answers") ? null : Json.strings(json.getJSONArray("answers"), 2);
        thoughts = json.isNull("thoughts") ? null : new Thoughts(json.getJSONObject("thoughts"));
    }

    // --- by hand ---

    /** What stands between a message of one role and of another; null where they do not follow each other. */
    public String between(String one, String other) {
        Map<String, String> found = between.get(one);
        return found == null ? null : found.get(other);
    }
}
