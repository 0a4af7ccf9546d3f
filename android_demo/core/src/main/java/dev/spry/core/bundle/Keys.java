package dev.spry.core.bundle;

import java.nio.charset.StandardCharsets;
import java.util.Base64;

import org.bouncycastle.crypto.params.Ed25519PublicKeyParameters;
import org.bouncycastle.crypto.signers.Ed25519Signer;

import dev.spry.core.SpryException;

/** Publishers' keys (Ed25519): 43 characters of base64url, as `spry keys` prints them. */
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
                    "the token is not whole: what follows its point is no public key; copy it again");
        }
        return key;
    }

    static boolean isKey(String text) {
        return decoded(text, KEY_BYTES) != null;
    }

    /** A signature's bytes; null where the text is none. */
    static byte[] signature(String text) {
        return decoded(text, SIGNATURE_BYTES);
    }

    /** Whether the key's owner signed exactly this. */
    static boolean verify(String key, byte[] message, byte[] signature) {
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
            String same = Base64.getUrlEncoder().withoutPadding().encodeToString(data);
            return data.length == size && same.equals(text) ? data : null;
        } catch (IllegalArgumentException error) {
            return null;
        }
    }
}
