package dev.spry.core.bundle;

import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.Set;

import org.json.JSONException;
import org.json.JSONObject;

/** What a bundle's programs that generate text can hold. */
public final class Generation {
    /** Tokens of prompt and answer together. */
    public final int length;
    /** A prompt's tokens at a time. */
    public final int chunk;
    /** The tokens by which the model ends a text. */
    public final Set<Integer> ends;

    Generation(JSONObject json) throws JSONException {
        length = json.getInt("length");
        chunk = json.getInt("chunk");
        Set<Integer> found = new LinkedHashSet<>();
        for (int end : Json.ints(json.getJSONArray("ends"))) {
            found.add(end);
        }
        ends = Collections.unmodifiableSet(found);
    }
}
