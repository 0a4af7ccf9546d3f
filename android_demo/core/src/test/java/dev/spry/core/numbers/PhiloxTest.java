package dev.spry.core.numbers;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.Vectors;

class PhiloxTest {
    @Test
    void givesTheKnownWords() throws Exception {
        JSONArray vectors = Vectors.read("directions.json").getJSONArray("philox4x32-10");
        assertTrue(vectors.length() > 0);
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            int[] counter = words(vector.getJSONArray("counter"));
            int[] key = words(vector.getJSONArray("key"));
            int[] out = new int[4];
            long joined = Integer.toUnsignedLong(key[0]) | Integer.toUnsignedLong(key[1]) << 32;
            Philox.words(counter[0], counter[1], counter[2], counter[3], joined, out);
            assertArrayEquals(words(vector.getJSONArray("out")), out);
        }
    }

    private static int[] words(JSONArray json) throws Exception {
        int[] found = new int[json.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = Integer.parseUnsignedInt(json.getString(i), 16);
        }
        return found;
    }
}
