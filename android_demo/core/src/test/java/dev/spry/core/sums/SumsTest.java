package dev.spry.core.sums;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.TrainingException;
import dev.spry.core.Vectors;

/** What this client adds in secret is what the Python client adds. */
class SumsTest {
    private static JSONArray vectors(String name) throws Exception {
        return Vectors.read("sums.json").getJSONArray(name);
    }

    static byte[] hex(String text) {
        byte[] found = new byte[text.length() / 2];
        for (int at = 0; at < found.length; at++) {
            found[at] = (byte) Integer.parseInt(text.substring(2 * at, 2 * at + 2), 16);
        }
        return found;
    }

    static byte[] hex(JSONObject vector, String name) throws Exception {
        return hex(vector.getString(name));
    }

    @Test
    void streams() throws Exception {
        JSONArray known = vectors("streams");
        for (int at = 0; at < known.length(); at++) {
            JSONObject vector = known.getJSONObject(at);
            byte[] expected = hex(vector, "bytes");
            byte[] found = Streams.stream(hex(vector, "seed"), vector.getInt("part"), expected.length);
            assertArrayEquals(expected, found, "stream " + at);
        }
    }

    @Test
    void theFirstStreamIsThatOfRfc8439() {
        byte[] expected = hex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7");
        assertArrayEquals(expected, Streams.stream(new byte[32], 0, 32));
    }

    @Test
    void keysAreDerivedAsInRfc5869() {
        byte[] secret = new byte[22];
        Arrays.fill(secret, (byte) 0x0b);
        byte[] found = Streams.derived(secret, hex("000102030405060708090a0b0c"), hex("f0f1f2f3f4f5f6f7f8f9"), 42);
        assertArrayEquals(
                hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"), found);
    }

    @Test
    void pairs() throws Exception {
        JSONArray known = vectors("pairs");
        for (int at = 0; at < known.length(); at++) {
            JSONObject vector = known.getJSONObject(at);
            byte[] one = hex(vector.getJSONArray("secrets").getString(0));
            byte[] other = hex(vector.getJSONArray("secrets").getString(1));
            byte[] context = hex(vector, "context");
            byte[] otherPublic = Streams.publicKey(other);
            assertArrayEquals(hex(vector.getJSONArray("publics").getString(1)), otherPublic);
            assertArrayEquals(hex(vector, "mask_seed"), Streams.maskSeed(one, otherPublic, context));
            Lock here = Lock.between(one, otherPublic, context);
            Lock there = Lock.between(other, Streams.publicKey(one), context);
            assertArrayEquals(hex(vector, "sealed"), here.seal(hex(vector, "plain")));
            assertArrayEquals(hex(vector, "plain"), there.open(hex(vector, "sealed")));
            assertNull(here.open(hex(vector, "sealed")));
            assertArrayEquals(hex(vector, "drawn"), here.drawn(Shamir.WIDE, true));
            assertArrayEquals(hex(vector, "drawn"), there.drawn(Shamir.WIDE, false));
            assertArrayEquals(hex(vector, "tag"), here.tag(hex(vector, "said"), true));
            assertArrayEquals(hex(vector, "tag"), there.tag(hex(vector, "said"), false));
        }
    }

    @Test
    void aKeyThatIsNoneIsRefused() {
        byte[] secret = new byte[32];
        secret[1] = 1;
        assertThrows(TrainingException.class, () -> Streams.maskSeed(secret, new byte[32], new byte[1]));
    }

    @Test
    void shares() throws Exception {
        JSONArray known = vectors("shamir");
        for (int at = 0; at < known.length(); at++) {
            JSONObject vector = known.getJSONObject(at);
            JSONArray shares = vector.getJSONArray("shares");
            int[] points = new int[shares.length()];
            for (int number = 0; number < points.length; number++) {
                points[number] = vector.getJSONArray("points").getInt(number);
            }
            int needed = vector.getInt("needed");
            assertEquals(needed, Shamir.threshold(points.length));
            Map<Integer, byte[]> given = new TreeMap<>();
            for (int number = 0; number < needed - 1; number++) {
                given.put(points[number], Shamir.drawn(hex(vector.getJSONArray("wide").getString(number))));
            }
            byte[][] found = Shamir.split(hex(vector, "secret"), points, given);
            Map<Integer, byte[]> some = new TreeMap<>();
            for (int number = 0; number < points.length; number++) {
                assertArrayEquals(hex(shares.getString(number)), found[number]);
                if (points.length - number <= needed) {
                    some.put(points[number], found[number]);
                }
            }
            assertArrayEquals(hex(vector, "secret"), Shamir.joined(some));
        }
    }

    @Test
    void changesAsIntegers() throws Exception {
        JSONArray known = vectors("fixed");
        for (int at = 0; at < known.length(); at++) {
            JSONObject vector = known.getJSONObject(at);
            JSONArray change = vector.getJSONArray("change");
            float[] values = new float[change.length()];
            for (int number = 0; number < values.length; number++) {
                values[number] = (float) change.getDouble(number);
            }
            int weighs = Fixed.weight(vector.getInt("examples"), vector.getInt("cap"));
            int[] found = Fixed.encoded(values, weighs, vector.getInt("count"));
            JSONArray words = vector.getJSONArray("words");
            for (int number = 0; number < found.length; number++) {
                assertEquals(words.getLong(number), found[number] & 0xffffffffL);
            }
        }
    }

    @Test
    void aReportAsIntegers() throws Exception {
        JSONObject vector = Vectors.read("sums.json").getJSONObject("told");
        JSONObject report = vector.getJSONObject("report");
        List<String> scores = Collections.singletonList(vector.getJSONArray("scores").getString(0));
        long[] found = Fixed.told(new Fixed.Told(report, scores), vector.getInt("weight"), scores);
        JSONArray words = vector.getJSONArray("words");
        assertEquals(words.length(), found.length);
        for (int number = 0; number < found.length; number++) {
            assertEquals(Long.parseUnsignedLong(words.getString(number)), found[number]);
        }
    }

    @Test
    void ofExamplesHeldBackAllIsToldOrNothing() throws Exception {
        JSONObject report = Vectors.read("sums.json").getJSONObject("told").getJSONObject("report");
        Fixed.Told told = new Fixed.Told(report, Arrays.asList("f1", "a score that this client has not"));
        assertEquals(report.getLong("examples"), told.examples);
        assertEquals(0, told.heldBack + told.rightGlobal + told.rightPersonal);
    }
}
