package dev.spry.core.bundle;

import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.json.JSONException;
import org.json.JSONObject;

/** A chat template that writes fixed words around messages, by the roles of the two that meet. */
public final class Turns {
    /** In the place of a role: where a conversation begins and ends. */
    public static final String EDGE = "";

    /** Behind the user's last message, where an answer is asked for. */
    public final String asking;
    /** The roles whose messages lose white space around. */
    public final Set<String> trimmed;
    /** What is learnt before an answer's own words, and behind them; null where that is not always the same. */
    public final String before;
    public final String behind;
    /** Null where answers stand as they are. */
    public final Thoughts thoughts;
    private final Map<String, Map<String, String>> between = new LinkedHashMap<>();

    Turns(JSONObject json) throws JSONException {
        asking = json.getString("asking");
        trimmed = Collections.unmodifiableSet(new HashSet<>(Json.strings(json.getJSONArray("trimmed"))));
        List<String> answers = json.isNull("answers") ? null : Json.strings(json.getJSONArray("answers"));
        if (answers != null && answers.size() != 2) {
            throw new JSONException("answers of turns must be two texts, got " + answers.size());
        }
        before = answers == null ? null : answers.get(0);
        behind = answers == null ? null : answers.get(1);
        thoughts = json.isNull("thoughts") ? null : new Thoughts(json.getJSONObject("thoughts"));
        JSONObject all = json.getJSONObject("between");
        for (Iterator<String> roles = all.keys(); roles.hasNext(); ) {
            String role = roles.next();
            between.put(role, texts(all.getJSONObject(role)));
        }
    }

    private static Map<String, String> texts(JSONObject json) throws JSONException {
        Map<String, String> found = new LinkedHashMap<>();
        for (Iterator<String> roles = json.keys(); roles.hasNext(); ) {
            String role = roles.next();
            found.put(role, json.getString(role));
        }
        return found;
    }

    /** What stands between a message of one role and of another; null where they do not follow each other. */
    public String between(String one, String other) {
        Map<String, String> found = between.get(one);
        return found == null ? null : found.get(other);
    }
}
