package dev.spry.core.bundle;

import org.json.JSONException;
import org.json.JSONObject;

/** A trainable tensor under its name in a PEFT adapter file. */
public final class Parameter {
    public final String name;
    public final int size;
    private final int[] shape;

    Parameter(JSONObject json) throws JSONException {
        this(json.getString("name"), Json.ints(json.getJSONArray("shape")));
    }

    Parameter(String name, int... shape) {
        this.name = name;
        this.shape = shape;
        int count = 1;
        for (int length : shape) {
            count = Math.multiplyExact(count, length);
        }
        size = count;
    }

    public int[] shape() {
        return shape.clone();
    }
}
