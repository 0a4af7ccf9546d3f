package dev.spry.core.sums;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;

import org.bouncycastle.crypto.agreement.X25519Agreement;
import org.bouncycastle.crypto.digests.SHA256Digest;
import org.bouncycastle.crypto.engines.ChaCha7539Engine;
import org.bouncycastle.crypto.generators.HKDFBytesGenerator;
import org.bouncycastle.crypto.params.HKDFParameters;
import org.bouncycastle.crypto.params.KeyParameter;
import org.bouncycastle.crypto.params.ParametersWithIV;
import org.bouncycastle.crypto.params.X25519PrivateKeyParameters;
import org.bouncycastle.crypto.params.X25519PublicKeyParameters;

import dev.spry.core.TrainingException;

/** Keys of one round, what two devices derive from them, and streams of masks, as edge_client/sums/streams.py has them. */
final class Streams {
    static final int KEY = 32;
    private static final String MASK = "spry sums mask";

    private Streams() {}

    static byte[] publicKey(byte[] secret) {
        return new X25519PrivateKeyParameters(secret, 0).generatePublicKey().getEncoded();
    }

    static byte[] derived(byte[] secret, byte[] context, byte[] purpose, int size) {
        HKDFBytesGenerator generator = new HKDFBytesGenerator(new SHA256Digest());
        generator.init(new HKDFParameters(secret, context, purpose));
        byte[] found = new byte[size];
        generator.generateBytes(found, 0, size);
        return found;
    }

    /** What X25519 makes of one's secret key and another's public one. */
    static byte[] agreed(byte[] secret, byte[] other) {
        byte[] shared = new byte[KEY];
        try {
            X25519Agreement agreement = new X25519Agreement();
            agreement.init(new X25519PrivateKeyParameters(secret, 0));
            agreement.calculateAgreement(new X25519PublicKeyParameters(other, 0), shared, 0);
        } catch (IllegalStateException noKey) { // a point of low order
            throw new TrainingException("a key of the round is invalid: this device sends nothing, as the server or a device is lying");
        }
        return shared;
    }

    /** The seed that two devices share. */
    static byte[] maskSeed(byte[] secret, byte[] other, byte[] context) {
        byte[] own = publicKey(secret);
        boolean first = isBefore(own, other);
        byte[] purpose = joined(utf8(MASK), first ? own : other, first ? other : own);
        return derived(agreed(secret, other), context, purpose, KEY);
    }

    /** Uniform bytes of a part, which numbers are read from in little-endian order. */
    static byte[] stream(byte[] seed, int part, int size) {
        byte[] nonce = new byte[12];
        for (int at = 0; at < 4; at++) {
            nonce[at] = (byte) (part >>> 8 * at);
        }
        ChaCha7539Engine engine = new ChaCha7539Engine();
        engine.init(true, new ParametersWithIV(new KeyParameter(seed), nonce));
        byte[] found = new byte[size];
        engine.processBytes(found, 0, size, found, 0);
        return found;
    }

    /** Whether bytes come before others, as unsigned numbers. */
    static boolean isBefore(byte[] one, byte[] other) {
        for (int at = 0; at < one.length; at++) {
            int difference = (one[at] & 0xff) - (other[at] & 0xff);
            if (difference != 0) {
                return difference < 0;
            }
        }
        return false;
    }

    static byte[] digest(byte[]... parts) {
        SHA256Digest digest = new SHA256Digest();
        for (byte[] part : parts) {
            digest.update(part, 0, part.length);
        }
        byte[] found = new byte[digest.getDigestSize()];
        digest.doFinal(found, 0);
        return found;
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] joined(byte[]... parts) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (byte[] part : parts) {
            out.write(part, 0, part.length);
        }
        return out.toByteArray();
    }
}
