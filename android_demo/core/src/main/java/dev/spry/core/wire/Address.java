package dev.spry.core.wire;

import java.io.UnsupportedEncodingException;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLEncoder;

import dev.spry.core.SpryException;

/** Addresses of servers, and of what they hold. */
public final class Address {
    private Address() {
    }

    /** The address as it is used, without a slash at its end. */
    public static String checked(String url) {
        String wrong = "'" + url + "' is no address of a server; give one such as https://spry.example.org";
        try {
            URL parsed = new URL(url.trim());
            boolean web = parsed.getProtocol().equals("http") || parsed.getProtocol().equals("https");
            if (!web || parsed.getHost().isEmpty() || parsed.getQuery() != null || parsed.getPort() > 0xffff) {
                throw new SpryException(wrong);
            }
            return parsed.toString().replaceAll("/+$", "");
        } catch (MalformedURLException error) {
            throw new SpryException(wrong);
        }
    }

    /** The address of a mirror: bundles stand below it, so it has no query, and nobody logs in there. */
    static String mirror(String url) {
        String wrong = "'" + url + "' is no address of a mirror; give one such as https://cdn.example.org/bundles";
        try {
            String known = checked(url);
            URL parsed = new URL(known);
            if (parsed.getUserInfo() != null || parsed.getRef() != null) {
                throw new SpryException(wrong);
            }
            return known;
        } catch (MalformedURLException error) {
            throw new SpryException(wrong);
        }
    }

    /** Whether others on the network can read what is sent. */
    public static boolean travelsOpen(String url) {
        try {
            URL parsed = new URL(url);
            String host = parsed.getHost();
            boolean loopback = host.equals("localhost") || host.startsWith("127.") || host.equals("[::1]");
            return !parsed.getProtocol().equals("https") && !loopback;
        } catch (MalformedURLException error) {
            return true;
        }
    }

    /** A name as one part of a path. */
    static String part(String name) {
        try {
            return URLEncoder.encode(name, "UTF-8").replace("+", "%20");
        } catch (UnsupportedEncodingException error) {
            throw new AssertionError(error);
        }
    }

    /** A path, its slashes kept. */
    static String path(String path) {
        return part(path).replace("%2F", "/");
    }
}
