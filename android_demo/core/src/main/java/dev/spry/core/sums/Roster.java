package dev.spry.core.sums;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;

/** Who takes part in a sum, as far as a device has to know. */
final class Roster {
    /** In place of the number of a peer: a witness that is the reader itself. */
    private static final int OWN = 255;

    /** Devices of the sum. */
    final int count;
    /** Of whose parts a sum is opened. */
    final int least;
    /** Examples that count at most. */
    final long cap;
    /** Their own public keys. */
    final List<byte[]> witnesses = new ArrayList<>();
    final List<Peer> peers = new ArrayList<>();
    /** Those of the same team, which stand first. */
    final List<Peer> mates;

    /** As it was told the device with this public key. */
    Roster(byte[] data, byte[] own) {
        Reader reader = new Reader(data);
        count = reader.two();
        least = reader.two();
        cap = reader.four();
        int signers = reader.one();
        int team = reader.two();
        int others = reader.two();
        for (int number = 0; number < team + others; number++) {
            peers.add(new Peer(reader, number < team));
        }
        mates = peers.subList(0, team);
        BitSet isNew = Reader.places(reader.set());
        for (int number = 0; number < signers; number++) {
            witnesses.add(isNew.get(number) ? reader.take(Streams.KEY) : known(reader, own));
        }
        reader.end();
    }

    private byte[] known(Reader reader, byte[] own) {
        int number = reader.one();
        if (number != OWN && number >= peers.size()) {
            throw Reader.nobody();
        }
        return number == OWN ? own : peers.get(number).identity;
    }

    /** What all devices of a sum agree on, or they cannot read each other. */
    byte[] context(String job, int round, byte[] terms) {
        String head = "spry sums 2\n" + job + "\n" + round + "\n" + count + " " + least + " " + cap + "\n";
        return Streams.digest(Streams.utf8(head), Streams.joined(witnesses.toArray(new byte[0][])), terms);
    }
}
