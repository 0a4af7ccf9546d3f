package dev.spry.core;

import java.security.SecureRandom;
import java.util.Base64;

import org.bouncycastle.crypto.params.Ed25519PrivateKeyParameters;
import org.bouncycastle.crypto.signers.Ed25519Signer;

/** A publisher with a key of its own. */
public final class Signer {
    public final String key;
    private final Ed25519PrivateKeyParameters secret = new Ed25519PrivateKeyParameters(new SecureRandom());

    public Signer() {
        key = text(secret.generatePublicKey().getEncoded());
    }

    public byte[] sign(byte[] message) {
        Ed25519Signer signer = new Ed25519Signer();
        signer.init(true, secret);
        signer.update(message, 0, message.length);
        return signer.generateSignature();
    }

    /** Of the file of signatures that stands beside a manifest. */
    public String line(byte[] manifest) {
        return key + " " + text(sign(manifest)) + "\n";
    }

    public static String text(byte[] data) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(data);
    }
}
