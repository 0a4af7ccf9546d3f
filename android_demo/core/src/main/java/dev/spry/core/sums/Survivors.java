package dev.spry.core.sums;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;

/** Stages vow and opening: who is in the sum. */
final class Survivors {
    /** As it came. */
    final byte[] places;
    final BitSet inside;
    /** What team-mates in it say of whose shares were there; of those that have not heard it. */
    final List<byte[]> tags = new ArrayList<>();
    /** Signatures, each behind the number of its witness. */
    final List<byte[]> vows;

    Survivors(byte[] data) {
        Reader reader = new Reader(data);
        places = reader.set();
        inside = Reader.places(places);
        for (int left = reader.two(); left > 0; left--) {
            tags.add(reader.take(Lock.TAG));
        }
        vows = reader.pieces(1 + Card.SIGNATURE);
    }

    /** What a witness signs, once in a round. */
    static byte[] signed(byte[] context, byte[] sharers, byte[] survivors) {
        byte[] length = {
            (byte) sharers.length, (byte) (sharers.length >>> 8), (byte) (sharers.length >>> 16),
            (byte) (sharers.length >>> 24),
        };
        return Streams.joined(Streams.utf8("spry sums vow\n"), context, length, sharers, survivors);
    }
}
