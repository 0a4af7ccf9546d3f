package dev.spry.core.bundle;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigInteger;
import java.security.SecureRandom;
import java.util.Arrays;

import org.junit.jupiter.api.Test;

import dev.spry.core.Signer;
import dev.spry.core.SpryException;

class KeysTest {
    /** Key, message and signature of RFC 8032, 7.1: tests 1, 2, 3 and SHA(abc). */
    private static final String[][] RFC_8032 = {
        {"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
                + "d25bf5f0595bbe24655141438e7a100b"},
        {"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
                + "387b2eaeb4302aeeb00d291612bb0c00"},
        {"fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
                + "4a7c15e9716ed28dc027beceea1ec40a"},
        {"ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd"
                + "454d4423643ce80e2a9ac94fa54ca49f",
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e030"
                + "3dca179c138ac17ad9bef1177331a704"},
    };
    /** Their secret keys. */
    private static final String[] SECRETS = {
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
    };
    /** The order of the group: a signature with it added is no second one. */
    private static final BigInteger ORDER =
            BigInteger.ONE.shiftLeft(252).add(new BigInteger("27742317777372353535851937790883648493"));

    private static byte[] bytes(String hex) {
        byte[] found = new byte[hex.length() / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return found;
    }

    private static byte[] flipped(byte[] data, int bit) {
        byte[] found = data.clone();
        found[bit / 8] ^= (byte) (1 << bit % 8);
        return found;
    }

    @Test
    void signaturesOfTheStandardAreRight() {
        for (String[] vector : RFC_8032) {
            String key = Signer.text(bytes(vector[0]));
            byte[] message = bytes(vector[1]);
            byte[] signature = bytes(vector[2]);
            assertTrue(Keys.verify(key, message, signature), vector[0]);
            for (int bit = 0; bit < 8 * signature.length; bit++) {
                assertFalse(Keys.verify(key, message, flipped(signature, bit)), vector[0] + " bit " + bit);
            }
            assertFalse(Keys.verify(key, Arrays.copyOf(message, message.length + 1), signature), vector[0]);
            for (int bit = 0; bit < 256; bit++) {
                assertFalse(Keys.verify(Signer.text(flipped(bytes(vector[0]), bit)), message, signature), "key " + bit);
            }
        }
    }

    @Test
    void signaturesAreThoseOfTheStandard() {
        for (int i = 0; i < SECRETS.length; i++) {
            String secret = Signer.text(bytes(SECRETS[i]));
            assertEquals(Signer.text(bytes(RFC_8032[i][0])), Keys.publicOf(secret));
            assertEquals(Signer.text(bytes(RFC_8032[i][2])), Keys.sign(secret, bytes(RFC_8032[i][1])));
        }
        assertNotEquals(Keys.make(), Keys.make());
    }

    @Test
    void aSignatureHasNoSecondForm() {
        for (String[] vector : RFC_8032) {
            byte[] signature = bytes(vector[2]);
            byte[] reversed = new byte[32];
            for (int i = 0; i < 32; i++) {
                reversed[i] = signature[63 - i];
            }
            byte[] more = new BigInteger(1, reversed).add(ORDER).toByteArray();
            byte[] second = Arrays.copyOf(signature, 64);
            for (int i = 0; i < 32; i++) {
                second[32 + i] = i < more.length ? more[more.length - 1 - i] : 0;
            }
            assertFalse(Keys.verify(Signer.text(bytes(vector[0])), bytes(vector[1]), second), vector[0]);
        }
    }

    @Test
    void whatWasJustSignedIsRightForItsKeyAlone() {
        SecureRandom random = new SecureRandom();
        for (int i = 0; i < 20; i++) {
            byte[] message = new byte[random.nextInt(3000)];
            random.nextBytes(message);
            Signer signer = new Signer();
            byte[] signature = signer.sign(message);
            assertTrue(Keys.verify(signer.key, message, signature));
            assertFalse(Keys.verify(new Signer().key, message, signature));
            assertFalse(Keys.verify(signer.key, message, Arrays.copyOf(signature, 63)));
        }
    }

    @Test
    void aTokenMayNameAPublisher() {
        String key = new Signer().key;
        assertNull(Keys.ofToken(null));
        assertNull(Keys.ofToken("secret"));
        assertEquals(key, Keys.ofToken("secret." + key));
        for (String wrong : new String[] {"secret.", "secret." + key.substring(1), "secret." + key + "=", ".é"}) {
            assertTrue(assertThrows(SpryException.class, () -> Keys.ofToken(wrong)).getMessage().contains("not whole"));
        }
    }

    @Test
    void aKeyIsWrittenInOneWay() {
        String key = new Signer().key;
        assertEquals(key, Keys.publicKey(" " + key + "\n"));
        char last = key.charAt(42); // of its six bits two say nothing, and are 0
        String letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        String other = key.substring(0, 42) + letters.charAt(letters.indexOf(last) + 1);
        for (String wrong : new String[] {"", "x", key + "A", key.substring(1), other, key.replace(last, '+')}) {
            assertThrows(SpryException.class, () -> Keys.publicKey(wrong), wrong);
        }
    }
}
