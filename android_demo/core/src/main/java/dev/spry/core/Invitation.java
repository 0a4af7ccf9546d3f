package dev.spry.core;

import java.io.UnsupportedEncodingException;
import java.net.URLDecoder;
import java.util.HashMap;
import java.util.Map;

/**
 * Where to enrol, and with what: what the QR code of a token says, {@code spry://join?server=…&token=…&key=…}, as
 * {@code edge_client/wire/invitation.py} describes it. Names that are not known here are passed over.
 */
public final class Invitation {
    private static final String BEGINNING = "spry://join?";
    private static final int LONGEST = 1000;
    private static final int SHOWN = 60;

    /** The server's address. */
    public final String server;
    /** The enrolment token. */
    public final String token;
    /** The publisher whose bundles alone are to be taken; empty where any may be. */
    public final String key;

    private Invitation(String server, String token, String key) {
        this.server = server;
        this.token = token;
        this.key = key;
    }

    /** What a text says; a {@link SpryException} where it is none. */
    public static Invitation in(String text) {
        String line = text.trim();
        Map<String, String> said = new HashMap<>();
        if (line.startsWith(BEGINNING) && line.length() <= LONGEST) {
            for (String part : line.substring(BEGINNING.length()).split("&")) {
                int equals = part.indexOf('=');
                if (equals > 0) {
                    said.put(part.substring(0, equals), decoded(part.substring(equals + 1)));
                }
            }
        }
        if (!said.containsKey("server") || !said.containsKey("token")) {
            String shown = line.length() > SHOWN ? line.substring(0, SHOWN) : line;
            throw new SpryException("'" + shown + "' is no invitation: expected " + BEGINNING + "server=…&token=…");
        }
        return new Invitation(said.get("server"), said.get("token"), said.getOrDefault("key", ""));
    }

    /** The token as a device takes it: with the publisher behind a point, where there is one. */
    public String pinned() {
        return key.isEmpty() ? token : token + "." + key;
    }

    private static String decoded(String part) {
        try {
            return URLDecoder.decode(part, "UTF-8");
        } catch (IllegalArgumentException | UnsupportedEncodingException error) {
            return "";
        }
    }
}
