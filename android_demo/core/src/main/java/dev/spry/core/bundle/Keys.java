package dev.spry.core.bundle;

import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.Base64;

import dev.spry.core.SpryException;
import org.bouncycastle.crypto.params.Ed25519PrivateKeyParameters;
import org.bouncycastle.crypto.params.Ed25519PublicKeyParameters;
import org.bouncycastle.crypto.signers.Ed25519Signer;

/** Keys (Ed25519) of publishers and of devices: 43 characters of base64url, as `spry keys` prints them. */
public final class Keys {
    private static final int KEY_BYTES = 32;
    private static final int SIGNATURE_BYTES = 64;

    private Keys() {}

    /** A public key as it was given; refuses what is none. */
    public static String publicKey(String given) {
        String text = given.trim();
        if (!isKey(text)) {
            throw new SpryException(
                    given + " is no public key; give the 43 characters that `spry keys show` prints");
        }
        return text;
    }

    /** The publisher's key that follows a token's point; null where there is none. */
    public static String ofToken(String token) {
        int point = token == null ? -1 : token.indexOf('.');
        if (point < 0) {
            return null;
        }
        String key = token.substring(point + 1);
        if (!isKey(key)) {
            throw new SpryException(
                    "the token is not whole: the part after its point is no public key; copy it again");
        }
        return key;
    }

    /** A new secret key. */
    public static String make() {
        return encoded(new Ed25519PrivateKeyParameters(new SecureRandom()).getEncoded());
    }

    /** A secret key's public one. */
    public static String publicOf(String secret) {
        return encoded(secretKey(secret).generatePublicKey().getEncoded());
    }

    /** A secret key as it was kept; refuses what is none. */
    public static String secret(String kept) {
        if (!isKey(kept)) {
            throw new SpryException("it holds no secret key");
        }
        return kept;
    }

    /** A message's signature, in base64url. */
    public static String sign(String secret, byte[] message) {
        return encoded(signed(secret, message));
    }

    /** A message's signature. */
    public static byte[] signed(String secret, byte[] message) {
        Ed25519Signer signer = new Ed25519Signer();
        signer.init(true, secretKey(secret));
        signer.update(message, 0, message.length);
        return signer.generateSignature();
    }

    private static Ed25519PrivateKeyParameters secretKey(String secret) {
        return new Ed25519PrivateKeyParameters(decoded(secret(secret), KEY_BYTES), 0);
    }

    /** A key's bytes. */
    public static byte[] bytes(String key) {
        return decoded(key, KEY_BYTES);
    }

    /** Bytes as text. */
    public static String encoded(byte[] data) {
        return Base64.getUrlEncoder().withoutPadding().encodeToString(data);
    }

    static boolean isKey(String text) {
        return decoded(text, KEY_BYTES) != null;
    }

    /** A signature's bytes; null where the text is none. */
    static byte[] signature(String text) {
        return decoded(text, SIGNATURE_BYTES);
    }

    /** Whether the key's owner signed exactly this. */
    public static boolean verify(String key, byte[] message, byte[] signature) {
        Ed25519Signer checked = new Ed25519Signer();
        try {
            checked.init(false, new Ed25519PublicKeyParameters(decoded(key, KEY_BYTES), 0));
        } catch (IllegalArgumentException noPoint) { // 32 bytes that are no key
            return false;
        }
        checked.update(message, 0, message.length);
        return checked.verifySignature(signature);
    }

    /** Bytes without a second spelling. */
    private static byte[] decoded(String text, int size) {
        try {
            byte[] data = Base64.getUrlDecoder().decode(text.getBytes(StandardCharsets.UTF_8));
            return data.length == size && encoded(data).equals(text) ? data : null;
        } catch (IllegalArgumentException error) {
            return null;
        }
    }
}
