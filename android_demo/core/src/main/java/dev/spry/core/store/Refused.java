package dev.spry.core.store;

import java.io.File;

import org.json.JSONObject;

import dev.spry.core.StoreException;
import dev.spry.core.Tell;

/**
 * Bundles for which a version of a runtime's library gave wrong results: they are not downloaded again for the same one,
 * though an app is started again and again by its system.
 */
public final class Refused {
    private final File path;

    public Refused(Store store) {
        path = new File(store.folder, "refused.json");
    }

    /** What was said then; null where nothing was. */
    public String why(String bundle, String version) {
        JSONObject known = Store.read(path, json -> json, Tell.SILENT);
        String said = known == null || version.isEmpty() ? "" : known.optString(key(bundle, version));
        return said.isEmpty() ? null : said;
    }

    /** An unknown version may be another one the next time. */
    public void add(String bundle, String version, String why) {
        JSONObject known = Store.read(path, json -> json, Tell.SILENT);
        if (version.isEmpty()) {
            return;
        }
        try {
            Store.write(path, () -> (known == null ? new JSONObject() : known).put(key(bundle, version), why));
        } catch (StoreException full) {
            return; // then it is downloaded again
        }
    }

    private static String key(String bundle, String version) {
        return bundle + " " + version;
    }
}
