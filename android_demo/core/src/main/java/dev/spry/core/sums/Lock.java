package dev.spry.core.sums;

import java.math.BigInteger;
import java.util.Arrays;

import org.bouncycastle.crypto.digests.SHA256Digest;
import org.bouncycastle.crypto.digests.SHA512Digest;
import org.bouncycastle.crypto.macs.HMac;
import org.bouncycastle.crypto.params.KeyParameter;

import dev.spry.core.TrainingException;

/**
 * What two devices of a sum have in common, and nobody between them: by their own keys and by those of the round, as
 * edge_client/sums/locks.py has it.
 */
final class Lock {
    static final int TAG = 16;
    private static final String PURPOSE = "spry sums lock";
    private static final BigInteger FIELD = BigInteger.ONE.shiftLeft(255).subtract(BigInteger.valueOf(19));

    final byte[] proof;
    private final byte[] common;
    private final boolean first;

    private Lock(byte[] both, boolean first) {
        proof = Arrays.copyOf(both, Streams.KEY);
        common = Arrays.copyOfRange(both, Streams.KEY, both.length);
        this.first = first;
    }

    /** By the secrets of the own key and of the key of the round of this end. */
    static Lock between(byte[] seed, byte[] mask, End here, End there, byte[] context) {
        byte[] own = scalar(seed);
        byte[] other = point(there.identity);
        boolean first = Streams.isBefore(here.identity, there.identity);
        byte[] ownWithTheirs = Streams.agreed(own, there.mask);
        byte[] maskWithOther = Streams.agreed(mask, other);
        byte[] shared = Streams.joined(
                Streams.agreed(own, other), Streams.agreed(mask, there.mask),
                first ? ownWithTheirs : maskWithOther, first ? maskWithOther : ownWithTheirs);
        byte[] purpose = Streams.joined(
                Streams.utf8(PURPOSE), (first ? here : there).encoded(), (first ? there : here).encoded());
        return new Lock(Streams.derived(shared, context, purpose, 2 * Streams.KEY), first);
    }

    /** X25519's secret of an Ed25519 key's. */
    static byte[] scalar(byte[] seed) {
        SHA512Digest digest = new SHA512Digest();
        digest.update(seed, 0, seed.length);
        byte[] found = new byte[digest.getDigestSize()];
        digest.doFinal(found, 0);
        return Arrays.copyOf(found, Streams.KEY);
    }

    /** X25519's public key of an Ed25519 key's: u = (1 + y) / (1 - y). */
    static byte[] point(byte[] identity) {
        BigInteger y = new BigInteger(1, reversed(identity)).clearBit(255);
        BigInteger below = BigInteger.ONE.subtract(y).mod(FIELD);
        if (below.signum() == 0) {
            throw new TrainingException("a device's own key is invalid: this device sends nothing, as the server or a device is lying");
        }
        byte[] bytes = BigInteger.ONE.add(y).multiply(below.modInverse(FIELD)).mod(FIELD).toByteArray();
        return Arrays.copyOf(reversed(bytes), Streams.KEY); // below 2^255, so no sign makes it longer
    }

    private static byte[] reversed(byte[] data) {
        byte[] found = new byte[data.length];
        for (int at = 0; at < data.length; at++) {
            found[at] = data[data.length - 1 - at];
        }
        return found;
    }

    /** Of the shares of both secrets that this end makes for the other, or is made. */
    byte[][] pads(boolean own) {
        byte[] wide = Streams.stream(common, own == first ? 0 : 1, 2 * Shamir.WIDE);
        return new byte[][] {
            Shamir.drawn(Arrays.copyOf(wide, Shamir.WIDE)),
            Shamir.drawn(Arrays.copyOfRange(wide, Shamir.WIDE, wide.length)),
        };
    }

    /** That this end, or the other, said something. */
    byte[] tag(byte[] said, boolean own) {
        HMac mac = new HMac(new SHA256Digest());
        mac.init(new KeyParameter(proof));
        mac.update((byte) (own == first ? 0 : 1));
        mac.update(said, 0, said.length);
        byte[] found = new byte[mac.getMacSize()];
        mac.doFinal(found, 0);
        return Arrays.copyOf(found, TAG);
    }
}
