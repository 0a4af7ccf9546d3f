package dev.spry.core.wire;

import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.util.Locale;

import dev.spry.core.BadAnswerException;

/** An answer whose head has come, and whose body is read in pieces. */
public final class Reply implements Closeable {
    /** Bytes each second: who sends less is taken for gone. */
    private static final double SLOWEST = 512;

    public final int status;
    final String url;

    private final HttpURLConnection connection;
    private final double patience;
    private final InputStream body;
    private final long length;
    private final long started = System.nanoTime();
    private double slowest = SLOWEST;
    private long size;

    Reply(HttpURLConnection connection, double patience) throws IOException {
        this.connection = connection;
        this.patience = patience;
        status = connection.getResponseCode();
        if (status < 0) {
            throw new IOException("no answer of HTTP");
        }
        url = connection.getURL().toString();
        String told = connection.getHeaderField("Content-Length");
        length = told != null && told.matches("\\d{1,18}") ? Long.parseLong(told) : -1;
        InputStream errors = connection.getErrorStream();
        body = status >= 400 ? errors : connection.getInputStream();
    }

    /** Bytes a second that it must come with in the mean. */
    Reply atLeast(double rate) {
        slowest = rate;
        return this;
    }

    public String header(String name) {
        String value = connection.getHeaderField(name);
        return value == null ? "" : value;
    }

    /** The content's type without its parameters. */
    String type() {
        return header("Content-Type").split(";", 2)[0].trim().toLowerCase(Locale.ROOT);
    }

    String phrase() throws IOException {
        String phrase = connection.getResponseMessage();
        return phrase == null ? "" : phrase;
    }

    /** The next bytes; -1 at the end, which is where the server said, or an error. */
    public int read(byte[] buffer) throws IOException {
        int count = body == null ? -1 : body.read(buffer);
        if (count < 0) {
            if (body != null && length > size) {
                throw new IOException("the answer ended after " + size + " of " + length + " bytes");
            }
            return -1;
        }
        size += count;
        double late = (System.nanoTime() - started) / 1e9 - patience;
        if (late > 0 && size < late * slowest) {
            throw new IOException("the answer comes too slowly: " + size + " bytes so far");
        }
        return count;
    }

    /** All of it, unless it is larger than any that is meant. */
    public byte[] all(int limit) throws IOException {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        byte[] buffer = new byte[16384];
        for (int count = read(buffer); count >= 0; count = read(buffer)) {
            if (found.size() + count > limit) {
                throw new BadAnswerException(String.format(Locale.ROOT,
                        "%s answers with more than %,d bytes; it is no server of this version", url, limit));
            }
            found.write(buffer, 0, count);
        }
        return found.toByteArray();
    }

    @Override
    public void close() {
        if (body == null) {
            return;
        }
        try {
            if (length < 0 || size < length) {
                connection.disconnect(); // what is left of it may be long, or never come
            }
            body.close();
        } catch (IOException error) {
            connection.disconnect();
        }
    }
}
