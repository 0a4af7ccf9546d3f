package dev.spry.core.sums;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Map;
import java.util.TreeMap;

import dev.spry.core.TrainingException;

/** A device's share of a private sum's noise, in whole numbers, as edge_client/sums/noise.py has it. */
public final class Share {
    /** Of the noise: how much more is drawn than is counted. */
    private static final double ROOM = 1.0 / 64;
    /** Whole numbers in a deviation of a share, at least. */
    private static final double FINEST = 1024;
    private static final double TAIL = 12;

    private final double noise;
    private final double clip;
    private final int least;

    /** Of noise that is counted, in clips; how far an update goes; and of how many devices the sum is opened. */
    public Share(double noise, double clip, int least) {
        this.noise = noise;
        this.clip = clip;
        this.least = least;
    }

    /** What all devices of a sum are told, or they cannot read each other. */
    public byte[] terms() {
        return ByteBuffer.allocate(16).putDouble(noise).putDouble(clip).array();
    }

    double deviation() {
        return (1 + ROOM) * noise * clip / Math.sqrt(least - 1);
    }

    /** What a change of 1 becomes, where so many devices are added. */
    double scale(int count) {
        double reach = count * clip + TAIL * Math.sqrt(count) * deviation();
        return Math.scalb(1.0, Math.getExponent(Integer.MAX_VALUE / reach));
    }

    /** Flat changes by their part, as they are added: clipped, whole, with noise, and everyone's weight. */
    Map<Integer, int[]> encoded(Map<Integer, float[]> changes, int count, byte[] secret) {
        check(count);
        double squares = 0;
        for (float[] change : changes.values()) {
            for (float number : change) {
                squares += (double) number * number;
            }
        }
        double length = Math.sqrt(squares);
        if (Double.isNaN(length) || Double.isInfinite(length)) {
            throw new TrainingException("the update has numbers that are not finite: lower the learning rate");
        }
        double factor = (length > 0 ? Math.min(1, clip / length) : 1) * scale(count);
        Map<Integer, int[]> found = new TreeMap<>();
        for (Map.Entry<Integer, float[]> part : changes.entrySet()) {
            double[] drawn = normal(secret, part.getKey(), part.getValue().length);
            found.put(part.getKey(), whole(part.getValue(), factor, drawn, deviation() * scale(count)));
        }
        return found;
    }

    private static int[] whole(float[] change, double factor, double[] drawn, double deviation) {
        int[] found = new int[change.length + 1];
        for (int at = 0; at < change.length; at++) {
            found[at] = (int) ((long) (change[at] * factor) + (long) Math.rint(deviation * drawn[at])); // modulo 2^32
        }
        found[change.length] = Fixed.WHOLE;
        return found;
    }

    /** Standard normal numbers of a part, by Box and Muller's way: first those of all cosines, then of sines. */
    static double[] normal(byte[] secret, int part, int count) {
        int pairs = (count + 1) / 2;
        ByteBuffer words = ByteBuffer.wrap(Streams.stream(secret, part, 16 * pairs)).order(ByteOrder.LITTLE_ENDIAN);
        double[] found = new double[count];
        for (int at = 0; at < pairs; at++) {
            double radius = Math.sqrt(-2 * Math.log(uniform(words.getLong(8 * at))));
            double angle = 2 * Math.PI * uniform(words.getLong(8 * (pairs + at)));
            found[at] = radius * Math.cos(angle);
            if (pairs + at < count) {
                found[pairs + at] = radius * Math.sin(angle);
            }
        }
        return found;
    }

    /** Above 0, and 1 at most. */
    private static double uniform(long word) {
        return ((word >>> 11) + 1) * 0x1p-53;
    }

    private void check(int count) {
        boolean known = noise > 0 && noise <= 1e6 && clip > 0 && clip <= 1e9;
        if (!known || deviation() * scale(count) < FINEST) {
            throw new TrainingException("the task's noise, " + noise + " clips of " + clip + ", is too little in a sum of "
                    + count + " devices: nothing is sent; ask the server's operator");
        }
    }
}
