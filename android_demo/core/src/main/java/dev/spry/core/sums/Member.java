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
    private Map<Integer, byte[]> shares;

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
        keep.run();
        byte[] lock = Streams.publicKey(kept.lock);
        byte[] mask = Streams.publicKey(kept.mask);
        byte[] text = Card.signed(about.job, about.round, about.place, about.units, lock, mask);
        return Streams.joined(lock, mask, Keys.signed(key, text));
    }

    /** Of both secrets, sealed for each team-mate that cannot draw its own. */
    public byte[] shares(byte[] told) {
        Roster found = new Roster(told, own);
        Rosters.check(found, about, own, kept);
        kept.roster = once("roster", kept.roster, told);
        keep.run();
        take(found);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (Peer mate : roster.mates.subList(needed() - 1, roster.mates.size())) {
            byte[] sealed = lock(mate).seal(shares().get(mate.point()));
            out.write(sealed, 0, sealed.length);
        }
        return out.toByteArray();
    }

    /** What it adds, masked. */
    public byte[] update(byte[] told, Parted parted) {
        requireRoster();
        Sharers sharers = new Sharers(told);
        checkSharers(sharers);
        kept.sharers = once("sharers", kept.sharers, told);
        keep.run();
        ByteArrayOutputStream tags = new ByteArrayOutputStream();
        for (Peer mate : roster.mates) {
            if (sharers.there.get(mate.place)) {
                tags.write(lock(mate).tag(sharers.places, true), 0, Lock.TAG);
            }
        }
        Parts parts = parted.of(roster.count, roster.cap);
        mask(parts, sharers);
        return parts.joined(tags.toByteArray());
    }

    /** A witness signs who is in the sum; others have nothing to say (null), and are told later. */
    public byte[] vow(byte[] told) {
        requireRoster();
        for (byte[] witness : roster.witnesses) {
            if (Arrays.equals(witness, own)) {
                Survivors survivors = heard(told);
                return Keys.signed(key, Survivors.signed(context, sharers().places, survivors.places));
            }
        }
        return null;
    }

    /** Of each team-mate one share: of its own mask where it is in the sum, of its key where it is not. */
    public byte[] opening(byte[] told) {
        requireRoster();
        Survivors survivors = heard(told);
        checkVows(survivors);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (Map.Entry<Integer, byte[]> both : received().entrySet()) {
            out.write(both.getValue(), survivors.inside.get(both.getKey()) ? Shamir.SHARE : 0, Shamir.SHARE);
        }
        return out.toByteArray();
    }

    // --- what it knows ---

    /** A server that never told one has cut it off. */
    private void requireRoster() {
        if (roster == null) {
            take(new Roster(new byte[0], own));
        }
    }

    private void take(Roster found) {
        roster = found;
        context = found.context(about.job, about.round);
    }

    private Sharers sharers() {
        return new Sharers(kept.sharers == null ? new byte[0] : kept.sharers);
    }

    /** Shares that give a secret of this device back: all but one are drawn, those of its first team-mates. */
    private int needed() {
        return Shamir.threshold(1 + roster.mates.size());
    }

    private Lock lock(Peer mate) {
        Lock found = locks.get(mate.place);
        if (found == null) {
            found = Lock.between(kept.lock, mate.card.lock, context);
            locks.put(mate.place, found);
        }
        return found;
    }

    /** Of its mask key and of its seed, by points. */
    private Map<Integer, byte[]> shares() {
        if (shares == null) {
            int[] points = points();
            Map<Integer, byte[]> ofMask = new TreeMap<>();
            Map<Integer, byte[]> ofSeed = new TreeMap<>();
            for (Peer mate : roster.mates.subList(0, needed() - 1)) {
                byte[] both = drawn(lock(mate), true);
                ofMask.put(mate.point(), Arrays.copyOf(both, Shamir.SHARE));
                ofSeed.put(mate.point(), Arrays.copyOfRange(both, Shamir.SHARE, both.length));
            }
            byte[][] one = Shamir.split(kept.mask, points, ofMask);
            byte[][] other = Shamir.split(kept.seed, points, ofSeed);
            shares = new HashMap<>();
            for (int at = 0; at < points.length; at++) {
                shares.put(points[at], Streams.joined(one[at], other[at]));
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

    /** Shares of both secrets that this end's device, or the other, need not send. */
    private static byte[] drawn(Lock lock, boolean own) {
        byte[] wide = lock.drawn(2 * Shamir.WIDE, own);
        return Streams.joined(
                Shamir.drawn(Arrays.copyOf(wide, Shamir.WIDE)),
                Shamir.drawn(Arrays.copyOfRange(wide, Shamir.WIDE, wide.length)));
    }

    /** Shares of both secrets of each team-mate that made some, and of its own, by places. */
    private Map<Integer, byte[]> received() {
        Sharers sharers = sharers();
        Iterator<byte[]> sealed = sharers.sealed.iterator();
        Map<Integer, byte[]> found = new TreeMap<>();
        found.put(about.place, shares().get(about.place + 1));
        for (int number = 0; number < roster.mates.size(); number++) {
            Peer mate = roster.mates.get(number);
            if (sharers.there.get(mate.place)) {
                boolean sent = sharers.senders.get(number);
                byte[] both = sent ? lock(mate).open(sealed.next()) : drawn(lock(mate), false);
                if (both == null) {
                    throw lying("the shares of place " + mate.place + " cannot be read");
                }
                found.put(mate.place, both);
            }
        }
        return found;
    }

    private void mask(Parts parts, Sharers sharers) {
        parts.add(kept.seed, true, 1);
        byte[] mask = Streams.publicKey(kept.mask);
        for (Peer peer : roster.peers) {
            if (sharers.there.get(peer.place)) {
                byte[] seed = Streams.maskSeed(kept.mask, peer.card.mask, context);
                parts.add(seed, peer.isMate, Streams.isBefore(mask, peer.card.mask) ? 1 : -1);
            }
        }
    }

    // --- what it refuses ---

    private static byte[] once(String name, byte[] known, byte[] told) {
        if (known != null && !Arrays.equals(known, told)) {
            throw lying("it told another " + name + " of the same round before");
        }
        return told;
    }

    private void checkSharers(Sharers sharers) {
        boolean fits = sharers.there.get(about.place) && sharers.there.cardinality() <= roster.count
                && sharers.senders.cardinality() == sharers.sealed.size()
                && sharers.senders.length() <= roster.mates.size();
        for (int number = sharers.senders.nextSetBit(0); fits && number >= 0;
                number = sharers.senders.nextSetBit(number + 1)) {
            fits = sharers.there.get(roster.mates.get(number).place);
        }
        if (!fits) {
            throw lying("whose shares are there does not fit the roster");
        }
        Rosters.checkEnough(roster, sharers.there, "shared");
    }

    /** Who is in the sum, checked; a witness that heard what team-mates say is told the same without it. */
    private Survivors heard(byte[] told) {
        Survivors survivors = new Survivors(told);
        Sharers sharers = sharers();
        BitSet strangers = (BitSet) survivors.inside.clone();
        strangers.andNot(sharers.there);
        if (!survivors.inside.get(about.place) || !strangers.isEmpty()) {
            throw lying("who is in the sum does not fit whose shares are there");
        }
        if (!survivors.tags.isEmpty() || kept.survivors == null) {
            checkTags(survivors, sharers);
        }
        Rosters.checkEnough(roster, survivors.inside, "are in the sum");
        kept.survivors = once("survivors", kept.survivors, survivors.places);
        keep.run();
        return survivors;
    }

    private void checkTags(Survivors survivors, Sharers sharers) {
        Iterator<byte[]> tags = survivors.tags.iterator();
        for (Peer mate : roster.mates) {
            if (survivors.inside.get(mate.place)) {
                if (!tags.hasNext()) {
                    throw lying("what team-mates said is missing");
                }
                if (!Arrays.equals(lock(mate).tag(sharers.places, false), tags.next())) {
                    throw lying("place " + mate.place + " was told of other shares");
                }
            }
        }
        if (tags.hasNext()) {
            throw lying("what team-mates said is missing");
        }
    }

    private void checkVows(Survivors survivors) {
        List<byte[]> witnesses = roster.witnesses;
        byte[] text = Survivors.signed(context, sharers().places, survivors.places);
        BitSet numbers = new BitSet();
        boolean valid = true;
        for (byte[] vow : survivors.vows) {
            int number = vow[0] & 0xff;
            byte[] signature = Arrays.copyOfRange(vow, 1, vow.length);
            valid &= number < witnesses.size() && Keys.verify(Keys.encoded(witnesses.get(number)), text, signature);
            numbers.set(number);
        }
        int count = numbers.cardinality();
        if (!valid || count != survivors.vows.size() || 2 * count <= witnesses.size()) {
            throw lying(count + " of " + witnesses.size() + " witnesses signed this sum, more than half must have");
        }
    }

    static TrainingException lying(String why) {
        return new TrainingException("nothing more is sent for this sum: " + why + "; ask who runs the server");
    }
}
