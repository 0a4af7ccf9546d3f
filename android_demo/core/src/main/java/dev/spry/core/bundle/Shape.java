package dev.spry.core.bundle;

import org.json.JSONArray;
import org.json.JSONException;

/** A batch size and a length for which there are programs. */
public final class Shape {
    public final int batch;
    public final int length;

    Shape(JSONArray json) throws JSONException {
        batch = json.getInt(0);
        length = json.getInt(1);
    }

    @Override
    public String toString() {
        return batch + "x" + length;
    }
}
