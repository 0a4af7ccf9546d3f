package dev.spry.core.store;

import java.io.File;

import org.json.JSONObject;

import dev.spry.core.StoreException;
import dev.spry.core.Tell;

/** Beside a bundle's manifest: the versions of libraries that gave right results on its trials, by runtime. */
public final class Tried {
    private final File path;

    public Tried(File folder) {
        path = new File(folder, "tried.json");
    }

    public boolean has(String runtime, String version) {
        JSONObject known = Store.read(path, json -> json, Tell.SILENT);
        return known != null && version.equals(known.optString(runtime));
    }

    /** Where nothing can be written it is tried again. */
    public void add(String runtime, String version) {
        JSONObject known = Store.read(path, json -> json, Tell.SILENT);
        try {
            Store.write(path, () -> (known == null ? new JSONObject() : known).put(runtime, version));
        } catch (StoreException full) {
            return;
        }
    }
}
