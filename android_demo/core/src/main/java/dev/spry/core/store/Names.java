package dev.spry.core.store;

import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;

/** Names of folders for what others name. */
final class Names {
    private Names() {
    }

    /** A folder's name for a server's address. */
    static String ofServer(String url) {
        try {
            URI address = new URI(url);
            String place = String.valueOf(address.getRawAuthority()) + String.valueOf(address.getRawPath());
            return safe(place.replaceAll("/+$", "").toLowerCase(Locale.ROOT));
        } catch (URISyntaxException error) {
            return safe(url);
        }
    }

    /** The name itself where it is a plain one, else one with a hash; servers choose the names of jobs. */
    static String safe(String name) {
        String plain = name.replaceAll("[^A-Za-z0-9._-]", "_").replaceAll("^\\.+", "");
        plain = plain.substring(0, Math.min(80, plain.length()));
        if (!plain.isEmpty() && plain.equals(name)) {
            return plain;
        }
        byte[] digest = Disk.sha256().digest(name.getBytes(StandardCharsets.UTF_8));
        return plain + "-" + Disk.hex(digest).substring(0, 12);
    }
}
