package dev.spry.core.sums;

import java.util.Arrays;
import java.util.BitSet;

import dev.spry.core.BadAnswerException;

/** Bytes of the server, taken from the front; whole numbers are little-endian. */
final class Reader {
    private static final String VERSIONS = "; server and device need the same version of spry";

    private final byte[] data;
    private int at;

    Reader(byte[] data) {
        this.data = data;
    }

    byte[] take(int size) {
        if (size > data.length - at) {
            throw new BadAnswerException("the server's part of a sum is cut off" + VERSIONS);
        }
        at += size;
        return Arrays.copyOfRange(data, at - size, at);
    }

    int one() {
        return take(1)[0] & 0xff;
    }

    int two() {
        return one() | one() << 8;
    }

    long four() {
        return two() | (long) two() << 16;
    }

    /** A set with its length before it. */
    byte[] set() {
        return take(two());
    }

    byte[] rest() {
        return take(data.length - at);
    }

    void end() {
        if (at != data.length) {
            throw new BadAnswerException("the server's part of a sum is too long" + VERSIONS);
        }
    }

    static BadAnswerException nobody() {
        return new BadAnswerException("a sum names a witness that does not exist" + VERSIONS);
    }

    /** A set of places, or of numbers, from its map of bits. */
    static BitSet places(byte[] bits) {
        return BitSet.valueOf(bits);
    }
}
