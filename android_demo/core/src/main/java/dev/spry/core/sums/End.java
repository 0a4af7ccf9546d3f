package dev.spry.core.sums;

import java.io.ByteArrayOutputStream;

/** A device as another knows it. */
final class End {
    final byte[] identity;
    final byte[] mask;
    private final int place;
    private final int[] units;

    End(byte[] identity, byte[] mask, int place, int[] units) {
        this.identity = identity;
        this.mask = mask;
        this.place = place;
        this.units = units;
    }

    byte[] encoded() {
        ByteArrayOutputStream numbers = new ByteArrayOutputStream();
        put(numbers, place);
        put(numbers, units.length);
        for (int unit : units) {
            put(numbers, unit);
        }
        return Streams.joined(identity, mask, numbers.toByteArray());
    }

    private static void put(ByteArrayOutputStream numbers, int value) {
        numbers.write(value);
        numbers.write(value >>> 8);
    }
}
