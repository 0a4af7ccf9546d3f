package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** A file of the bundle, its path relative to the bundle's folder, with forward slashes. */
public final class FileSpec {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String path;
    public final String sha256;
    public final long bytes;

    FileSpec(JSONObject json) throws JSONException {
        path = json.getString("path");
        sha256 = json.getString("sha256");
        bytes = json.getLong("bytes");
    }
}
