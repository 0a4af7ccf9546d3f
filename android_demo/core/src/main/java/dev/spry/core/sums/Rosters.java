package dev.spry.core.sums;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import dev.spry.core.bundle.Keys;

/** What a device refuses to be told of who takes part. */
final class Rosters {
    private Rosters() {}

    static void check(Roster roster, About about, byte[] own, Secrets kept) {
        if (roster.least != about.least) {
            throw Member.lying("it would open sums of " + roster.least + " devices, where its task named " + about.least);
        }
        checkRepeats(roster, about, own, kept);
        if (about.terms.length > 0 && roster.cap != 1) {
            throw Member.lying(
                    "it would let a device weigh " + roster.cap + " times as much as another, in a private sum");
        }
        if (roster.cap == 0 || roster.count < 1 + roster.peers.size()
                || roster.witnesses.size() != Quorum.witnesses(roster.count)) {
            throw Member.lying("its roster does not fit the devices in it");
        }
        BitSet there = new BitSet();
        for (Peer peer : roster.peers) {
            there.set(peer.place);
        }
        checkEnough(roster, there, "take part");
    }

    private static void checkRepeats(Roster roster, About about, byte[] own, Secrets kept) {
        List<byte[]> keys = new ArrayList<>();
        List<byte[]> identities = new ArrayList<>();
        BitSet places = new BitSet();
        keys.add(Streams.publicKey(kept.mask));
        identities.add(own);
        places.set(about.place);
        for (Peer peer : roster.peers) {
            keys.add(peer.mask);
            identities.add(peer.identity);
            places.set(peer.place);
        }
        if (repeats(keys) || repeats(identities) || repeats(roster.witnesses)
                || places.cardinality() != identities.size()) {
            throw Member.lying("a key or slot belongs to two devices");
        }
    }

    private static boolean repeats(List<byte[]> keys) {
        Set<String> seen = new HashSet<>();
        for (byte[] key : keys) {
            if (!seen.add(Keys.encoded(key))) {
                return true;
            }
        }
        return false;
    }

    /** Of the team, with this device: they hold the same units, and all of them the head. */
    static void checkEnough(Roster roster, BitSet places, String what) {
        int team = 1;
        for (Peer mate : roster.mates) {
            team += places.get(mate.place) ? 1 : 0;
        }
        if (team < roster.least) {
            throw Member.lying(team + " of this device's team " + what + "; a sum needs at least " + roster.least);
        }
    }
}
