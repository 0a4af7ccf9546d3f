package dev.spry.core.wire;

import java.io.UnsupportedEncodingException;
import java.net.HttpURLConnection;
import java.net.URL;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.text.ParseException;
import java.util.Base64;

import dev.spry.core.bundle.Keys;
import dev.spry.core.store.Disk;

/**
 * How a device proves that a request is its own: by a key that never leaves it.
 *
 * <p>The signature stands over the method, the time in milliseconds, the body's digest, the query and the path. Each
 * request is newer than all before, and a server takes none that is not.
 */
public final class Signing {
    private static final int SKEW = 300; // seconds by which clocks may differ
    private static final int UNAUTHORIZED = 401;
    private static final int TOO_EARLY = 425;

    private final String device;
    private final String key;
    private final String prefix;
    private double ahead;
    private long newest;

    /** `url` is the server's address, of whose path a proxy takes the beginning off. */
    public Signing(String device, String key, String url) {
        this.device = device;
        this.key = key;
        prefix = url.replaceFirst("^[a-z]+://[^/]*", "");
    }

    /** Proves a request that is about to be sent. */
    void sign(HttpURLConnection request, byte[] content) {
        String digest = content == null || content.length == 0 ? "" : digest(content);
        newest = Math.max(System.currentTimeMillis() + (long) (ahead * 1000), newest + 1);
        String text = text(request.getRequestMethod(), newest, digest, request.getURL());
        String signature = Keys.sign(key, text.getBytes(StandardCharsets.UTF_8));
        request.setRequestProperty("Authorization", "Spry " + device + "." + newest + "." + signature);
        if (!digest.isEmpty()) {
            request.setRequestProperty("Content-Digest", digest);
        }
    }

    private String text(String method, long moment, String digest, URL url) {
        String path = decoded(url.getPath().substring(prefix.length()));
        String query = url.getQuery() == null ? "" : url.getQuery();
        return "spry request\n" + method + "\n" + moment + "\n" + digest + "\n" + query + "\n" + path;
    }

    private static String decoded(String path) {
        try {
            return URLDecoder.decode(path.replace("+", "%2B"), "UTF-8");
        } catch (UnsupportedEncodingException error) {
            throw new AssertionError(error);
        }
    }

    static String digest(byte[] content) {
        return "sha-256=:" + Base64.getEncoder().encodeToString(Disk.sha256().digest(content)) + ":";
    }

    /** Whether another signature may be taken: this clock is wrong, or another process signed something newer. */
    boolean isWorthAnother(Reply reply) {
        return reply.status == TOO_EARLY || reply.status == UNAUTHORIZED && isCorrected(reply.header("Date"));
    }

    private boolean isCorrected(String date) {
        try {
            double found = (Refusals.moment(date) - System.currentTimeMillis()) / 1000.0;
            if (Math.abs(found - ahead) < SKEW / 2.0) {
                return false;
            }
            ahead = found;
            newest = 0;
            return true;
        } catch (ParseException error) {
            return false;
        }
    }
}
