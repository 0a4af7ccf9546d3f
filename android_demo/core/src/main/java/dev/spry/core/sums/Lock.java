package dev.spry.core.sums;

import java.util.Arrays;

import org.bouncycastle.crypto.InvalidCipherTextException;
import org.bouncycastle.crypto.digests.SHA256Digest;
import org.bouncycastle.crypto.macs.HMac;
import org.bouncycastle.crypto.modes.ChaCha20Poly1305;
import org.bouncycastle.crypto.params.AEADParameters;
import org.bouncycastle.crypto.params.KeyParameter;

/** What two devices can read, and nobody between them. */
final class Lock {
    static final int TAG = 16;
    private static final String PURPOSE = "spry sums lock";

    private final byte[] key;
    private final byte[] proof;
    private final byte[] common;
    private final boolean first;

    private Lock(byte[] both, boolean first) {
        key = Arrays.copyOf(both, Streams.KEY);
        proof = Arrays.copyOfRange(both, Streams.KEY, 2 * Streams.KEY);
        common = Arrays.copyOfRange(both, 2 * Streams.KEY, both.length);
        this.first = first;
    }

    static Lock between(byte[] secret, byte[] other, byte[] context) {
        byte[] both = Streams.agreed(secret, other, context, PURPOSE, 3 * Streams.KEY);
        return new Lock(both, Streams.isBefore(Streams.publicKey(secret), other));
    }

    /** Each end has a nonce of its own, and seals once. */
    byte[] seal(byte[] plain) {
        try {
            return processed(true, first, plain);
        } catch (InvalidCipherTextException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** Null where the other end did not seal it. */
    byte[] open(byte[] sealed) {
        try {
            return processed(false, !first, sealed);
        } catch (InvalidCipherTextException foreign) {
            return null;
        }
    }

    private byte[] processed(boolean sealing, boolean byFirst, byte[] data) throws InvalidCipherTextException {
        byte[] nonce = new byte[12];
        nonce[11] = (byte) (byFirst ? 0 : 1);
        ChaCha20Poly1305 cipher = new ChaCha20Poly1305();
        cipher.init(sealing, new AEADParameters(new KeyParameter(key), 8 * TAG, nonce));
        byte[] found = new byte[cipher.getOutputSize(data.length)];
        int written = cipher.processBytes(data, 0, data.length, found, 0);
        cipher.doFinal(found, written);
        return found;
    }

    /** Uniform bytes that stand for this end, or the other, and that both know. */
    byte[] drawn(int size, boolean own) {
        return Streams.stream(common, own == first ? 0 : 1, size);
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
