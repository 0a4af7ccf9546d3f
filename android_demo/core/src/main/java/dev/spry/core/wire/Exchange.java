package dev.spry.core.wire;

import java.io.Closeable;
import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.URL;
import java.net.UnknownServiceException;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;

import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLSocketFactory;

import dev.spry.core.Event;
import dev.spry.core.Pause;
import dev.spry.core.ServerException;
import dev.spry.core.Stopped;
import dev.spry.core.Tell;
import dev.spry.core.UnreachableException;

/**
 * How requests travel: one at a time, each with its limits of time, and repeated until it is answered.
 *
 * <p>A request is repeated on a lost connection, on 429 and on 5xx, after pauses that grow and vary, or as it asks.
 */
final class Exchange implements Closeable {
    private static final double FIRST_PAUSE = 0.5;
    private static final double LONGEST_PAUSE = 300;
    /** Seconds of Retry-After that are waited: a server with many devices spreads them. */
    private static final double LONGEST_ASKED = 3600;
    /** Bytes of an upload that are held a second time rather than streamed. */
    private static final int SMALL = 1 << 20;
    /** Bytes each second that an upload may be as slow as. */
    private static final double SLOWEST_UPLOAD = 8192;
    private static final List<Integer> REPEATED = Arrays.asList(408, 425, 429);

    private final String url;
    private final String root;
    private final Pause pause;
    private final Tell tell;
    private final double seconds;
    private final double patience;
    private final SSLSocketFactory trust;
    private Enrolled identity;
    private Signing signing;
    private volatile HttpURLConnection current;
    private volatile boolean closed;

    /** Paths of requests stand below `root`; what is told names the `url`. */
    Exchange(
            String url, String root, Pause pause, Tell tell, double seconds, double patience, SSLSocketFactory trust) {
        this.url = url;
        this.root = root;
        this.pause = pause;
        this.tell = tell;
        this.seconds = seconds;
        this.patience = patience;
        this.trust = trust;
    }

    /** `how` requests are signed; null where the identity has a secret to send. */
    void identify(Enrolled who, Signing how) {
        identity = who;
        signing = how;
    }

    /** End what is under way, from any thread; requests after this end with Stopped. */
    @Override
    public void close() {
        closed = true;
        HttpURLConnection connection = current;
        if (connection != null) {
            connection.disconnect();
        }
    }

    // --- one request ---

    /** The head of an answer. `wait` is what the server was asked to wait; a file may be wanted from `start` on. */
    Reply reply(String method, String path, byte[] content, String type, double wait, long start)
            throws IOException {
        Reply reply = once(method, path, content, type, wait, start);
        if (signing == null || !signing.isWorthAnother(reply)) {
            return reply;
        }
        reply.close();
        return once(method, path, content, type, wait, start);
    }

    private Reply once(String method, String path, byte[] content, String type, double wait, long start)
            throws IOException {
        HttpURLConnection connection = (HttpURLConnection) new URL(root + path).openConnection();
        current = connection;
        if (closed) {
            throw new Stopped();
        }
        prepare(connection, method, seconds + wait);
        prove(connection, content);
        if (start > 0) {
            connection.setRequestProperty("Range", "bytes=" + start + "-");
        }
        double upload = content == null ? 0 : content.length / SLOWEST_UPLOAD;
        Deadline deadline = new Deadline(connection, 2 * seconds + wait + upload, () -> closed);
        try (Deadline watched = deadline) {
            if (content != null) {
                write(connection, content, type);
            }
            return new Reply(connection, seconds);
        } catch (IOException error) {
            connection.disconnect();
            throw deadline.passed() ? new IOException("its answer does not begin") : error;
        }
    }

    private void prepare(HttpURLConnection connection, String method, double patience) throws IOException {
        if (trust != null && connection instanceof HttpsURLConnection) {
            ((HttpsURLConnection) connection).setSSLSocketFactory(trust);
        }
        connection.setRequestMethod(method);
        connection.setInstanceFollowRedirects(false); // the device's secret is for this server
        connection.setUseCaches(false);
        connection.setConnectTimeout((int) (seconds * 1000));
        connection.setReadTimeout((int) (patience * 1000));
        connection.setRequestProperty("User-Agent", "spry-android/0.1.0");
        connection.setRequestProperty("Accept", "*/*");
        connection.setRequestProperty("Accept-Encoding", "identity");
    }

    private void prove(HttpURLConnection connection, byte[] content) {
        if (signing != null) {
            signing.sign(connection, content);
        } else if (identity != null && !identity.secret.isEmpty()) {
            connection.setRequestProperty("Authorization", "Bearer " + identity.device + "." + identity.secret);
        }
    }

    private static void write(HttpURLConnection connection, byte[] content, String type) throws IOException {
        connection.setRequestProperty("Content-Type", type);
        connection.setDoOutput(true);
        if (content.length > SMALL) {
            connection.setFixedLengthStreamingMode(content.length); // else it would be held a second time
        }
        connection.getOutputStream().write(content);
    }

    // --- until it is answered ---

    /** Do something with the server until it succeeds or is refused for good. */
    <T> T repeat(Server.Work<T> work) {
        long started = System.nanoTime();
        boolean told = false;
        for (int attempt = 0;; attempt++) {
            ServerException problem;
            try {
                T found = work.get();
                if (told) {
                    tell.tell(Event.of("reachable", url + " answers again"));
                }
                return found;
            } catch (ServerException error) {
                problem = error;
            } catch (IOException error) {
                problem = problem(error);
            }
            double delay = delay(attempt, problem.retryAfter);
            boolean late = (System.nanoTime() - started) / 1e9 + delay > patience;
            if (late || !worthRepeating(problem)) {
                throw problem;
            }
            if (!told && (attempt > 0 || problem.status == 0)) {
                tell.tell(Event.of("unreachable", problem.getMessage() + "; trying again until it answers"));
                told = true;
            }
            pause.pause(delay);
        }
    }

    private ServerException problem(IOException error) {
        if (closed) {
            throw new Stopped();
        }
        String certificate = Trust.problem(error);
        if (certificate != null) {
            return new ServerException(url + " " + certificate, "");
        }
        if (error instanceof UnknownServiceException) { // how Android refuses what its security configuration forbids
            return new ServerException(url + " is not encrypted, which this app allows for local addresses at most ("
                    + error.getMessage() + "); use https", "");
        }
        String reason = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
        return new UnreachableException(url + " gives no answer (" + reason + ")");
    }

    // --- pauses ---

    private static boolean worthRepeating(ServerException problem) {
        return problem instanceof UnreachableException || problem.status >= 500 || REPEATED.contains(problem.status);
    }

    /** Full jitter: many devices that lost the same server must not come back at once. */
    private static double delay(int attempt, double asked) {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        if (!Double.isNaN(asked)) {
            return Math.min(asked, LONGEST_ASKED) * random.nextDouble(1.0, 1.25);
        }
        double grown = Math.min(FIRST_PAUSE * Math.pow(2, Math.min(attempt, 20)), LONGEST_PAUSE);
        return random.nextDouble(grown / 4, grown);
    }
}
