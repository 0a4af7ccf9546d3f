package dev.spry.core.sums;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
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
import dev.spry.core.bundle.Keys;

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
            byte[] context = hex(vector, "context");
            byte[][] own = each(vector, "own");
            byte[][] masks = each(vector, "masks");
            End[] ends = {end(vector, 0), end(vector, 1)};
            for (int end = 0; end < 2; end++) {
                assertArrayEquals(each(vector, "scalars")[end], Lock.scalar(own[end]));
                assertArrayEquals(each(vector, "points")[end], Lock.point(ends[end].identity));
                assertArrayEquals(each(vector, "points")[end], Streams.publicKey(Lock.scalar(own[end])));
                assertArrayEquals(each(vector, "ends")[end], ends[end].encoded());
            }
            assertArrayEquals(hex(vector, "mask_seed"), Streams.maskSeed(masks[0], ends[1].mask, context));
            Lock here = Lock.between(own[0], masks[0], ends[0], ends[1], context);
            Lock there = Lock.between(own[1], masks[1], ends[1], ends[0], context);
            assertArrayEquals(hex(vector, "proof"), here.proof);
            JSONArray pads = vector.getJSONArray("pads");
            for (int secret = 0; secret < 2; secret++) {
                byte[] ours = hex(pads.getJSONArray(0).getString(secret));
                byte[] theirs = hex(pads.getJSONArray(1).getString(secret));
                assertArrayEquals(ours, here.pads(true)[secret]);
                assertArrayEquals(ours, there.pads(false)[secret]);
                assertArrayEquals(theirs, here.pads(false)[secret]);
                assertArrayEquals(theirs, there.pads(true)[secret]);
            }
            assertArrayEquals(hex(vector, "tag"), here.tag(hex(vector, "said"), true));
            assertArrayEquals(hex(vector, "tag"), there.tag(hex(vector, "said"), false));
        }
    }

    private static byte[][] each(JSONObject vector, String name) throws Exception {
        JSONArray both = vector.getJSONArray(name);
        return new byte[][] {hex(both.getString(0)), hex(both.getString(1))};
    }

    private static End end(JSONObject vector, int at) throws Exception {
        JSONArray numbers = vector.getJSONArray("units").getJSONArray(at);
        int[] units = new int[numbers.length()];
        for (int number = 0; number < units.length; number++) {
            units[number] = numbers.getInt(number);
        }
        byte[] identity = Keys.bytes(Keys.publicOf(Keys.encoded(each(vector, "own")[at])));
        byte[] mask = Streams.publicKey(each(vector, "masks")[at]);
        return new End(identity, mask, vector.getJSONArray("places").getInt(at), units);
    }

    @Test
    void aKeyThatIsNoneIsRefused() {
        byte[] secret = new byte[32];
        secret[1] = 1;
        assertThrows(TrainingException.class, () -> Streams.maskSeed(secret, new byte[32], new byte[1]));
        byte[] one = new byte[32];
        one[0] = 1;
        assertThrows(TrainingException.class, () -> Lock.point(one));
    }

    @Test
    void quorums() {
        int[] devices = {3, 4, 5, 10, 25, 26, 100};
        int[] needed = {3, 3, 4, 7, 18, 15, 15};
        for (int at = 0; at < devices.length; at++) {
            assertEquals(needed[at], Quorum.of(Quorum.witnesses(devices[at])));
        }
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
            assertEquals(needed, Shamir.threshold(points.length, 3));
            assertEquals(points.length + 4, Shamir.threshold(points.length, points.length + 5));
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
            assertArrayEquals(hex(vector, "less"), Shamir.less(found[0], found[found.length - 1]));
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
    void normalNumbers() throws Exception {
        JSONObject vector = Vectors.read("sums.json").getJSONObject("normal");
        JSONArray numbers = vector.getJSONArray("numbers");
        double[] found = Share.normal(hex(vector, "secret"), vector.getInt("part"), numbers.length());
        for (int number = 0; number < found.length; number++) {
            assertEquals(numbers.getDouble(number), found[number], 1e-14);
        }
    }

    @Test
    void noiseThatHidesNothingAndNumbersThatAreNoneAreRefused() {
        Map<Integer, float[]> one = Collections.singletonMap(Parts.HEAD, new float[] {1});
        Map<Integer, float[]> none = Collections.singletonMap(Parts.HEAD, new float[] {Float.NaN});
        for (double noise : new double[] {0, -1, Double.NaN, Double.POSITIVE_INFINITY, 1e-9}) {
            assertThrows(TrainingException.class, () -> new Share(noise, 0.01, 3).encoded(one, 4096, new byte[32]));
        }
        assertThrows(TrainingException.class, () -> new Share(1, 0.01, 3).encoded(none, 3, new byte[32]));
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
