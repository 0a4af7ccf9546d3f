package dev.spry.core.bundle;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** What a bundle's programs that generate text can hold. */
public final class Generation {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    /** Tokens of prompt and answer together. */
    public final int length;
    /** A prompt's tokens at a time. */
    public final int chunk;
    /** The tokens by which the model ends a text. */
    public final List<Integer> ends;

    Generation(JSONObject json) throws JSONException {
        length = json.getInt("length");
        chunk = json.getInt("chunk");
        ends = Json.integers(json.getJSONArray("ends"));
    }
}
