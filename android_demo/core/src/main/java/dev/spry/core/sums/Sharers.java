package dev.spry.core.sums;

import java.util.BitSet;
import java.util.List;

/** Stage update: whose shares are there, and those sealed for this device, by the order of its team-mates. */
final class Sharers {
    static final int SEALED = 2 * Shamir.SHARE + Lock.TAG;

    /** As it came. */
    final byte[] places;
    final BitSet there;
    /** Which of the team-mates sealed theirs, by their order in the roster; this device draws the others'. */
    final BitSet senders;
    final List<byte[]> sealed;

    Sharers(byte[] data) {
        Reader reader = new Reader(data);
        places = reader.set();
        there = Reader.places(places);
        senders = Reader.places(reader.set());
        sealed = reader.pieces(SEALED);
    }
}
