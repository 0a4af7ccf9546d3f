package dev.spry.core.wire;

import java.util.regex.Pattern;

/** What holds for every text that a server, a bundle or a row says. */
public final class Bounds {
    private static final Pattern CONTROLS = Pattern.compile(
            "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]|\\p{Cs}");

    private Bounds() {
    }

    /** The text with a space for each character that would steer a terminal, a log or the direction of writing. */
    public static String shown(String text) {
        return text == null ? null : CONTROLS.matcher(text).replaceAll(" ");
    }
}
