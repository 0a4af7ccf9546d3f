package dev.spry.core.sums;

import java.util.Arrays;

import org.bouncycastle.crypto.InvalidCipherTextException;
import org.bouncycastle.crypto.digests.SHA256Digest;
import org.bouncycastle.crypto.macs.HMac;
import org.bouncycastle.crypto.modes.ChaCha20Poly1305;
import org.bouncycastle.crypto.params.AEADParameters;
import org.bouncycastle.crypto.params.KeyParameter;

/** What two devices can read, and nobody between them. */
public final class Lock {
    static final int TAG = 16;
    private static final String PURPOSE = "spry sums lock";

    private final byte[] key;
    private final byte[] proof;
    private final boolean first;

    private Lock(byte[] key, byte[] proof, boolean first) {
        this.key = key;
        this.proof = proof;
        this.first = first;
    }

    public static Lock between(byte[] secret, byte[] other, byte[] context) {
        byte[] both = Streams.agreed(secret, other, context, PURPOSE, 2 * Streams.KEY);
        return new Lock(
                Arrays.copyOf(both, Streams.KEY),
                Arrays.copyOfRange(both, Streams.KEY, both.length),
                Streams.isBefore(Streams.publicKey(secret), other));
    }

    /** Each end has a nonce of its own, and seals once. */
    public byte[] seal(byte[] plain) {
        try {
            return processed(true, first, plain);
        } catch (InvalidCipherTextException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** Null where the other end did not seal it. */
    public byte[] open(byte[] sealed) {
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

    /** That this end, or the other, said something. */
    public byte[] tag(byte[] said, boolean own) {
        HMac mac = new HMac(new SHA256Digest());
        mac.init(new KeyParameter(proof));
        mac.update((byte) (own == first ? 0 : 1));
        mac.update(said, 0, said.length);
        byte[] found = new byte[mac.getMacSize()];
        mac.doFinal(found, 0);
        return Arrays.copyOf(found, TAG);
    }
}
