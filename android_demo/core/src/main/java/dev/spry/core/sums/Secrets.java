package dev.spry.core.sums;

import java.security.SecureRandom;
import java.util.Base64;

import org.json.JSONException;
import org.json.JSONObject;

/** What a device has drawn for a sum and been told of it, as the Python client keeps it. */
public final class Secrets {
    /** The key of the round. */
    final byte[] mask;
    /** Of its own mask. */
    final byte[] seed;
    /** null before it was told. */
    byte[] roster;
    byte[] sharers;
    byte[] survivors;
    byte[] terms;
    /** Its share of the noise comes of it; opened to nobody. */
    byte[] noise = drawn();

    /** Drawn anew. */
    public Secrets() {
        this(drawn(), drawn());
    }

    Secrets(byte[] mask, byte[] seed) {
        this.mask = mask;
        this.seed = seed;
    }

    public Secrets(JSONObject json) throws JSONException {
        this(bytes(json, "mask"), bytes(json, "seed"));
        roster = bytes(json, "roster");
        sharers = bytes(json, "sharers");
        survivors = bytes(json, "survivors");
        if (json.has("noise")) {
            terms = bytes(json, "terms");
            noise = bytes(json, "noise");
        }
        for (byte[] secret : new byte[][] {mask, seed, noise}) {
            if (secret == null || secret.length != Streams.KEY) {
                throw new JSONException("a secret of it is none");
            }
        }
    }

    public JSONObject toJson() throws JSONException {
        return new JSONObject()
                .put("mask", text(mask)).put("seed", text(seed))
                .put("roster", text(roster)).put("sharers", text(sharers)).put("survivors", text(survivors))
                .put("terms", text(terms)).put("noise", text(noise));
    }

    private static byte[] drawn() {
        byte[] secret = new byte[Streams.KEY];
        new SecureRandom().nextBytes(secret);
        return secret;
    }

    private static String text(byte[] data) {
        return data == null ? "" : Base64.getEncoder().encodeToString(data);
    }

    private static byte[] bytes(JSONObject json, String name) throws JSONException {
        String text = json.getString(name);
        try {
            return text.isEmpty() ? null : Base64.getDecoder().decode(text);
        } catch (IllegalArgumentException damaged) {
            throw new JSONException(name + " of it is no base64");
        }
    }
}
