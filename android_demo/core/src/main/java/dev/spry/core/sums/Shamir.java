package dev.spry.core.sums;

import java.math.BigInteger;
import java.util.Map;
import java.util.TreeMap;

/** A secret of 32 bytes in shares, of which a threshold gives it back and fewer say nothing. */
final class Shamir {
    static final int SHARE = 32;
    /** Bytes from which a pad is drawn: what they are off from uniform, nobody can see. */
    static final int WIDE = 48;
    private static final BigInteger PRIME = BigInteger.ONE.shiftLeft(256).subtract(BigInteger.valueOf(189));

    private Shamir() {}

    /** Shares that give a secret back, of so many: its holders and the device are as many as a sum needs. */
    static int threshold(int members, int least) {
        return Math.max(least - 1, members / 3);
    }

    /** What a share is more than a pad: by itself it says nothing of the share. */
    static byte[] less(byte[] share, byte[] pad) {
        return bytes(new BigInteger(1, share).subtract(new BigInteger(1, pad)).mod(PRIME));
    }

    /** A pad from uniform bytes. */
    static byte[] drawn(byte[] wide) {
        return bytes(new BigInteger(1, wide).mod(PRIME));
    }

    /** A share for each point, which is a number above 0, where some have theirs; one more gives the secret back. */
    static byte[][] split(byte[] secret, int[] points, Map<Integer, byte[]> given) {
        Map<Integer, byte[]> known = new TreeMap<>(given);
        known.put(0, secret);
        byte[][] shares = new byte[points.length][];
        for (int at = 0; at < points.length; at++) {
            shares[at] = given.containsKey(points[at]) ? given.get(points[at]) : value(known, points[at]);
        }
        return shares;
    }

    /** The secret of shares by their points. */
    static byte[] joined(Map<Integer, byte[]> shares) {
        return value(shares, 0);
    }

    /** What the polynomial of least degree through what is known has at a point (Lagrange). */
    private static byte[] value(Map<Integer, byte[]> known, int point) {
        BigInteger total = BigInteger.ZERO;
        for (Map.Entry<Integer, byte[]> share : known.entrySet()) {
            BigInteger above = BigInteger.ONE;
            BigInteger below = BigInteger.ONE;
            for (int other : known.keySet()) {
                if (other != share.getKey()) {
                    above = above.multiply(BigInteger.valueOf((long) point - other)).mod(PRIME);
                    below = below.multiply(BigInteger.valueOf((long) share.getKey() - other)).mod(PRIME);
                }
            }
            BigInteger value = new BigInteger(1, share.getValue());
            total = total.add(value.multiply(above).multiply(below.modInverse(PRIME))).mod(PRIME);
        }
        return bytes(total);
    }

    private static byte[] bytes(BigInteger number) {
        byte[] signed = number.toByteArray();
        byte[] found = new byte[SHARE];
        int size = Math.min(SHARE, signed.length); // a sign may stand before 32 bytes
        System.arraycopy(signed, signed.length - size, found, SHARE - size, size);
        return found;
    }
}
