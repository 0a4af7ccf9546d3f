package dev.spry.core.sums;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Stages vow and opening: who is in the sum. */
final class Survivors {
    /** As it came. */
    final byte[] places;
    final BitSet inside;
    /** What peers in it say of whose shares were there; of those that have not heard it. */
    final List<byte[]> tags = new ArrayList<>();
    static final int SIGNATURE = 64;

    /** Signatures, by the number of their witness. */
    final Map<Integer, byte[]> vows = new TreeMap<>();

    Survivors(byte[] data) {
        Reader reader = new Reader(data);
        places = reader.set();
        inside = Reader.places(places);
        for (int left = reader.two(); left > 0; left--) {
            tags.add(reader.take(Lock.TAG));
        }
        BitSet witnesses = Reader.places(reader.set());
        for (int number = witnesses.nextSetBit(0); number >= 0; number = witnesses.nextSetBit(number + 1)) {
            vows.put(number, reader.take(SIGNATURE));
        }
        reader.end();
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
