package dev.spry.core.sums;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Map;
import java.util.TreeMap;

/** An update as integers, part by part: what reports say, the head, and units. Masks are added to them and wrap around. */
public final class Parts {
    static final int TOLD = 0;
    static final int HEAD = 1;
    static final int UNITS = 2;

    /** Of the head and units, by their part's number. */
    private final TreeMap<Integer, int[]> words = new TreeMap<>();
    private final long[] told;

    Parts(long[] told) {
        this.told = told;
    }

    void put(int part, int[] numbers) {
        words.put(part, numbers);
    }

    /** A seed's masks, added or (sign -1) taken away; those of units where the seed's other end holds them too. */
    void add(byte[] seed, boolean units, int sign) {
        ByteBuffer masks = mask(seed, TOLD, 8 * told.length);
        for (int at = 0; at < told.length; at++) {
            told[at] += sign * masks.getLong();
        }
        for (Map.Entry<Integer, int[]> part : words.entrySet()) {
            if (units || part.getKey() < UNITS) {
                int[] numbers = part.getValue();
                masks = mask(seed, part.getKey(), 4 * numbers.length);
                for (int at = 0; at < numbers.length; at++) {
                    numbers[at] += sign * masks.getInt();
                }
            }
        }
    }

    private static ByteBuffer mask(byte[] seed, int part, int size) {
        return ByteBuffer.wrap(Streams.stream(seed, part, size)).order(ByteOrder.LITTLE_ENDIAN);
    }

    /** As it travels, behind what comes before it: units, the head, what reports say. */
    byte[] joined(byte[] before) {
        int size = before.length + 8 * told.length;
        for (int[] numbers : words.values()) {
            size += 4 * numbers.length;
        }
        ByteBuffer out = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN).put(before);
        for (int[] numbers : words.tailMap(UNITS).values()) {
            put(out, numbers);
        }
        put(out, words.get(HEAD));
        for (long number : told) {
            out.putLong(number);
        }
        return out.array();
    }

    private static void put(ByteBuffer out, int[] numbers) {
        for (int number : numbers) {
            out.putInt(number);
        }
    }
}
