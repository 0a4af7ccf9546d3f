package dev.spry.core.sums;

import java.util.Arrays;

/** A device's keys of a round, signed by its own. */
final class Card {
    static final int SIGNATURE = 64;
    static final int SIZE = 2 * Streams.KEY + SIGNATURE;

    final byte[] lock;
    final byte[] mask;
    final byte[] signature;

    Card(byte[] data) {
        lock = Arrays.copyOf(data, Streams.KEY);
        mask = Arrays.copyOfRange(data, Streams.KEY, 2 * Streams.KEY);
        signature = Arrays.copyOfRange(data, 2 * Streams.KEY, SIZE);
    }

    /** What stands under a card's signature. */
    static byte[] signed(String job, int round, int place, int[] units, byte[] lock, byte[] mask) {
        StringBuilder numbers = new StringBuilder();
        for (int unit : units) {
            numbers.append(numbers.length() == 0 ? "" : " ").append(unit);
        }
        String head = "spry sums card\n" + job + "\n" + round + "\n" + place + "\n" + numbers + "\n";
        return Streams.joined(Streams.utf8(head), lock, mask);
    }
}
