package dev.spry.core.sums;

import java.math.BigInteger;
import java.util.Map;

/** A secret of 32 bytes in shares, of which a threshold gives it back and fewer say nothing. */
public final class Shamir {
    static final int SHARE = 33;
    private static final int WIDE = 48;
    private static final BigInteger PRIME = BigInteger.ONE.shiftLeft(256).add(BigInteger.valueOf(297));
    private static final String PURPOSE = "spry sums polynomial";

    private Shamir() {}

    /** Shares that give a secret back, of so many. */
    public static int threshold(int members) {
        return Math.max(2, members / 3);
    }

    /** A share for each point, which is a number above 0. */
    public static byte[][] split(byte[] secret, int[] points, int needed, byte[] context) {
        byte[] seed = Streams.derived(secret, context, Streams.utf8(PURPOSE), Streams.KEY);
        byte[] drawn = Streams.stream(seed, 0, WIDE * (needed - 1));
        byte[][] shares = new byte[points.length][];
        for (int number = 0; number < points.length; number++) {
            BigInteger point = BigInteger.valueOf(points[number]);
            BigInteger value = BigInteger.ZERO;
            for (int at = needed - 1; at > 0; at--) {
                byte[] coefficient = new byte[WIDE];
                System.arraycopy(drawn, WIDE * (at - 1), coefficient, 0, WIDE);
                value = value.multiply(point).add(new BigInteger(1, coefficient)).mod(PRIME);
            }
            shares[number] = bytes(value.multiply(point).add(new BigInteger(1, secret)).mod(PRIME), SHARE);
        }
        return shares;
    }

    /** The secret of shares by their points; null where they are of no secret of 32 bytes. */
    public static byte[] joined(Map<Integer, byte[]> shares) {
        BigInteger total = BigInteger.ZERO;
        for (Map.Entry<Integer, byte[]> share : shares.entrySet()) {
            BigInteger above = BigInteger.ONE;
            BigInteger below = BigInteger.ONE;
            for (int other : shares.keySet()) {
                if (other != share.getKey()) {
                    above = above.multiply(BigInteger.valueOf(other)).mod(PRIME);
                    below = below.multiply(BigInteger.valueOf((long) other - share.getKey())).mod(PRIME);
                }
            }
            BigInteger value = new BigInteger(1, share.getValue());
            total = total.add(value.multiply(above).multiply(below.modInverse(PRIME))).mod(PRIME);
        }
        return total.bitLength() > 8 * Streams.KEY ? null : bytes(total, Streams.KEY);
    }

    private static byte[] bytes(BigInteger number, int size) {
        byte[] signed = number.toByteArray();
        byte[] found = new byte[size];
        int from = Math.max(0, signed.length - size);
        System.arraycopy(signed, from, found, size - signed.length + from, signed.length - from);
        return found;
    }
}
