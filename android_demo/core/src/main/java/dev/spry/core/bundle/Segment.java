package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** A link of the chain: the blocks from `firstBlock` up to, not including, `lastBlock`. */
public final class Segment {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String name;
    public final int firstBlock;
    public final int lastBlock;

    Segment(JSONObject json) throws JSONException {
        name = json.getString("name");
        firstBlock = json.getInt("first_block");
        lastBlock = json.getInt("last_block");
    }
}
