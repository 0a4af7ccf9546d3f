package dev.spry.core.numbers;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.Set;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.DirectionException;
import dev.spry.core.Vectors;

class DirectionsTest {
    @Test
    void drawsWhatPythonDraws() throws Exception {
        JSONArray vectors = Vectors.read("directions.json").getJSONArray("draws");
        Set<String> kinds = new HashSet<>();
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            String kind = vector.getString("kind");
            kinds.add(kind);
            long seed = Long.parseUnsignedLong(vector.getString("seed"));
            int[] examples = Vectors.ints(vector.getJSONArray("examples"));
            float[] drawn = Directions.draw(
                    seed, (int) vector.getLong("unit"), vector.getInt("size"), vector.getInt("iteration"),
                    vector.getInt("directions"), examples, kind);
            check(vector.getJSONArray("rows"), drawn, kind.equals("normal") ? 1 : 0);
        }
        assertEquals(3, kinds.size());
    }

    /** Within some roundings of float32: mathematical libraries differ in the last bits of a double. */
    private static void check(JSONArray rows, float[] drawn, int roundings) throws Exception {
        int i = 0;
        for (int row = 0; row < rows.length(); row++) {
            for (float expected : Vectors.floats(rows.getJSONArray(row))) {
                assertEquals(expected, drawn[i++], roundings * Math.ulp(expected));
            }
        }
        assertEquals(drawn.length, i);
    }

    @Test
    void refusesWhatHasNoCounter() {
        int[] first = {0};
        assertThrows(DirectionException.class, () -> Directions.draw(1, 0, 0, 0, 1, first, "normal"));
        assertThrows(DirectionException.class, () -> Directions.draw(1, 0, 4, 1 << 30, 4, first, "normal"));
        assertThrows(DirectionException.class, () -> Directions.draw(1, 0, 4, 0, 2, new int[] {1 << 31}, "orthogonal"));
        String unknown = assertThrows(
                DirectionException.class, () -> Directions.draw(1, 0, 4, 0, 1, first, "uniform")).getMessage();
        assertTrue(unknown.contains("draws uniform directions"), unknown);
    }
}
