package dev.spry.core.sums;

import java.io.ByteArrayOutputStream;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import dev.spry.core.TrainingException;
import dev.spry.core.bundle.Keys;

/**
 * A device's part in a sum: what it sends at each stage, and what it refuses to be told, as edge_client/sums/member.py.
 *
 * <p>Nothing here waits or travels. What was said is kept before it is sent, and said again as it was.
 */
public final class Member {
    private final About about;
    private final String key;
    private final byte[] own;
    private final Secrets kept;
    private final Runnable keep;
    private final Map<Integer, Lock> locks = new HashMap<>();
    private Roster roster;
    private byte[] context;
    private Map<Integer, byte[][]> shares;

    /** Gives the parts of a sum of so many devices, where examples count up to a cap. */
    public interface Parted {
        Parts of(int count, long cap);
    }

    /** `key` is the device's own secret one, which signs; `keep` writes down what is kept, before anything is said. */
    public Member(About about, String key, Secrets kept, Runnable keep) {
        if (about.least < Fixed.FEWEST) {
            throw lying("it would open sums of " + about.least + " devices; " + Fixed.FEWEST + " is the least");
        }
        this.about = about;
        this.key = key;
        this.kept = kept;
        this.keep = keep;
        own = Keys.bytes(Keys.publicOf(key));
        if (kept.roster != null) {
            take(new Roster(kept.roster, own));
        }
    }

    // --- what it says ---

    public byte[] card() {
        if (about.terms.length > 0 || kept.terms != null) {
            kept.terms = once("terms", kept.terms, about.terms);
        }
        keep.run();
        return Streams.publicKey(kept.mask);
    }

    /** Of both secrets, less the pads of the team-mates that hold them; the first hold pads as they are. */
    public byte[] shares(byte[] told) {
        Roster found = new Roster(told, own);
        Rosters.check(found, about, own, kept);
        kept.roster = once("roster", kept.roster, told);
        keep.run();
        take(found);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (Peer mate : roster.mates.subList(needed() - 1, roster.mates.size())) {
            byte[][] pads = lock(mate).pads(true);
            byte[][] both = shares().get(mate.point());
            for (int at = 0; at < both.length; at++) {
                out.write(Shamir.less(both[at], pads[at]), 0, Shamir.SHARE);
            }
        }
        return out.toByteArray();
    }

    /** What it adds, masked. */
    public byte[] update(byte[] told, Parted parted) {
        requireRoster();
        BitSet there = Reader.places(told);
        checkSharers(there);
        kept.sharers = once("sharers", kept.sharers, told);
        keep.run();
        ByteArrayOutputStream tags = new ByteArrayOutputStream();
        for (Peer peer : roster.peers) {
            if (there.get(peer.place)) {
                tags.write(lock(peer).tag(told, true), 0, Lock.TAG);
            }
        }
        Parts parts = parted.of(roster.count, roster.cap);
        mask(parts, there);
        return parts.joined(tags.toByteArray());
    }

    /** A witness signs who is in the sum; others have nothing to say (null), and are told later. */
    public byte[] vow(byte[] told) {
        requireRoster();
        for (byte[] witness : roster.witnesses) {
            if (Arrays.equals(witness, own)) {
                Survivors survivors = heard(told);
                return Keys.signed(key, Survivors.signed(context, sharers(), survivors.places));
            }
        }
        return null;
    }

    /** Of each team-mate one pad: of its own mask where it is in the sum, of its key where it is not. */
    public byte[] opening(byte[] told) {
        requireRoster();
        Survivors survivors = heard(told);
        checkVows(survivors);
        BitSet there = Reader.places(sharers());
        Map<Integer, byte[]> opened = new TreeMap<>();
        opened.put(about.place, shares().get(about.place + 1)[1]);
        for (Peer mate : roster.mates) {
            if (there.get(mate.place)) {
                opened.put(mate.place, lock(mate).pads(false)[survivors.inside.get(mate.place) ? 1 : 0]);
            }
        }
        return Streams.joined(opened.values().toArray(new byte[0][]));
    }

    // --- what it knows ---

    /** The secret that its noise comes of: the same whenever this sum's update is made again. */
    public byte[] noise() {
        return kept.noise.clone();
    }

    /** A server that never told one has cut it off. */
    private void requireRoster() {
        if (roster == null) {
            take(new Roster(new byte[0], own));
        }
    }

    private void take(Roster found) {
        roster = found;
        context = found.context(about.job, about.round, about.terms);
    }

    private byte[] sharers() {
        return kept.sharers == null ? new byte[0] : kept.sharers;
    }

    /** Shares that give a secret of this device back: all but one are pads, those of its first team-mates. */
    private int needed() {
        return Shamir.threshold(1 + roster.mates.size(), about.least);
    }

    private Lock lock(Peer peer) {
        Lock found = locks.get(peer.place);
        if (found == null) {
            End here = new End(own, Streams.publicKey(kept.mask), about.place, about.units);
            End there = new End(peer.identity, peer.mask, peer.place, peer.isMate ? about.units : peer.units);
            found = Lock.between(Keys.bytes(key), kept.mask, here, there, context);
            locks.put(peer.place, found);
        }
        return found;
    }

    /** Of its mask key and of its seed, by points. */
    private Map<Integer, byte[][]> shares() {
        if (shares == null) {
            int[] points = points();
            Map<Integer, byte[]> ofMask = new TreeMap<>();
            Map<Integer, byte[]> ofSeed = new TreeMap<>();
            for (Peer mate : roster.mates.subList(0, needed() - 1)) {
                byte[][] pads = lock(mate).pads(true);
                ofMask.put(mate.point(), pads[0]);
                ofSeed.put(mate.point(), pads[1]);
            }
            byte[][] one = Shamir.split(kept.mask, points, ofMask);
            byte[][] other = Shamir.split(kept.seed, points, ofSeed);
            shares = new HashMap<>();
            for (int at = 0; at < points.length; at++) {
                shares.put(points[at], new byte[][] {one[at], other[at]});
            }
        }
        return shares;
    }

    /** Of the team-mates and this device, as shares have them. */
    private int[] points() {
        int[] points = new int[1 + roster.mates.size()];
        points[0] = about.place + 1;
        for (int at = 1; at < points.length; at++) {
            points[at] = roster.mates.get(at - 1).point();
        }
        return points;
    }

    private void mask(Parts parts, BitSet there) {
        parts.add(kept.seed, true, 1);
        byte[] mask = Streams.publicKey(kept.mask);
        for (Peer peer : roster.peers) {
            if (there.get(peer.place)) {
                byte[] seed = Streams.maskSeed(kept.mask, peer.mask, context);
                parts.add(seed, peer.isMate, Streams.isBefore(mask, peer.mask) ? 1 : -1);
            }
        }
    }

    // --- what it refuses ---

    private static byte[] once(String name, byte[] known, byte[] told) {
        if (known != null && !Arrays.equals(known, told)) {
            throw lying("the server sent another " + name + " of the same round before");
        }
        return told;
    }

    private void checkSharers(BitSet there) {
        if (!there.get(about.place) || there.cardinality() > roster.count) {
            throw lying("the devices with shares are not those of the roster");
        }
        Rosters.checkEnough(roster, there, "shared");
    }

    /** Who is in the sum, checked; a witness that heard what team-mates say is told the same without it. */
    private Survivors heard(byte[] told) {
        Survivors survivors = new Survivors(told);
        BitSet strangers = (BitSet) survivors.inside.clone();
        strangers.andNot(Reader.places(sharers()));
        if (!survivors.inside.get(about.place) || !strangers.isEmpty()) {
            throw lying("the devices in the sum are not those with shares");
        }
        if (!survivors.tags.isEmpty() || kept.survivors == null) {
            checkTags(survivors);
        }
        Rosters.checkEnough(roster, survivors.inside, "are in the sum");
        kept.survivors = once("survivors", kept.survivors, survivors.places);
        keep.run();
        return survivors;
    }

    private void checkTags(Survivors survivors) {
        Iterator<byte[]> tags = survivors.tags.iterator();
        for (Peer peer : roster.peers) {
            if (survivors.inside.get(peer.place)) {
                if (!tags.hasNext()) {
                    throw lying("messages of other devices are missing");
                }
                if (!Arrays.equals(lock(peer).tag(sharers(), false), tags.next())) {
                    throw lying("place " + peer.place + " got other keys or shares");
                }
            }
        }
        if (tags.hasNext()) {
            throw lying("messages of other devices are missing");
        }
    }

    private void checkVows(Survivors survivors) {
        List<byte[]> witnesses = roster.witnesses;
        byte[] text = Survivors.signed(context, sharers(), survivors.places);
        boolean valid = true;
        for (Map.Entry<Integer, byte[]> vow : survivors.vows.entrySet()) {
            int number = vow.getKey();
            valid &= number < witnesses.size() && Keys.verify(Keys.encoded(witnesses.get(number)), text, vow.getValue());
        }
        int signed = survivors.vows.size();
        int needed = Quorum.of(witnesses.size());
        if (!valid || signed < needed) {
            throw lying(signed + " of " + witnesses.size() + " witnesses signed this sum, " + needed + " must have");
        }
    }

    static TrainingException lying(String why) {
        return new TrainingException("nothing more is sent for this sum: " + why + "; ask the server's operator");
    }
}
