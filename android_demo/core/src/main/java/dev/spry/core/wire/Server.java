package dev.spry.core.wire;

import java.io.Closeable;
import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.URL;
import java.net.UnknownServiceException;
import java.text.ParseException;
import java.text.SimpleDateFormat;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ThreadLocalRandom;

import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLSocketFactory;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.BadAnswerException;
import dev.spry.core.Event;
import dev.spry.core.Pause;
import dev.spry.core.ServerException;
import dev.spry.core.SpryException;
import dev.spry.core.Stopped;
import dev.spry.core.Tell;
import dev.spry.core.UnauthorizedException;
import dev.spry.core.UnreachableException;

/**
 * One server, as a device sees it: requests that are repeated until they are answered, and answers that are checked.
 *
 * <p>A request is repeated on a lost connection, on 429 and on 5xx, after pauses that grow and vary, or as the server
 * asks. Every request of the wire can be repeated without harm. A refusal becomes a ServerException with its code.
 */
public final class Server implements Closeable {
    public static final String VERSION = "v1";
    /** For connecting and between two pieces of an answer. */
    public static final double SECONDS = 30;
    static final double LONGEST_PAUSE = 300;

    private static final double FIRST_PAUSE = 0.5;
    /** Bytes that an answer may have: a message; weights. */
    private static final int SMALL = 1 << 20;
    private static final int LARGE = 1 << 30;
    /** Bytes each second that an upload may be as slow as. */
    private static final double SLOWEST_UPLOAD = 8192;
    private static final List<Integer> REPEATED = Arrays.asList(408, 425, 429);
    private static final String PROBLEM = "application/problem+json";
    private static final String SAFETENSORS = "application/vnd.safetensors";
    private static final String VERSION_HEADER = "X-Spry-Version";

    public final String url;

    private final Pause pause;
    private final Tell tell;
    private final double seconds;
    private final double patience;
    private final SSLSocketFactory trust;
    private Enrolled identity;
    private volatile HttpURLConnection current;
    private volatile boolean closed;

    private Server(Builder builder) {
        url = Address.checked(builder.url);
        pause = builder.pause;
        tell = builder.tell;
        seconds = builder.seconds;
        patience = builder.patience;
        trust = builder.trust;
    }

    /** How to reach a server. */
    public static final class Builder {
        private final String url;
        private Pause pause = Pause.SLEEP;
        private Tell tell = Tell.SILENT;
        private double seconds = SECONDS;
        private double patience = Double.POSITIVE_INFINITY;
        private SSLSocketFactory trust;

        public Builder(String url) {
            this.url = url;
        }

        public Builder pause(Pause waits) {
            pause = waits;
            return this;
        }

        /** Hears when the server cannot be reached, and when it can again. */
        public Builder tell(Tell listener) {
            tell = listener;
            return this;
        }

        /** How long a server may be silent. */
        public Builder seconds(double limit) {
            seconds = limit;
            return this;
        }

        /** The seconds after which a server that does not answer is given up; without end unless set. */
        public Builder patience(double limit) {
            patience = limit;
            return this;
        }

        /** Who may vouch for the server, in place of the system's authorities. */
        public Builder trust(SSLSocketFactory authorities) {
            trust = authorities;
            return this;
        }

        public Server open() {
            return new Server(this);
        }
    }

    /** Who this device is, once it is enrolled. */
    public void identify(Enrolled who) {
        identity = who;
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

    public void warnIfOpen() {
        if (Address.travelsOpen(url)) {
            String why = " is not encrypted: the device's secret travels in the open; use https";
            tell.tell(Event.of("warning", url + why));
        }
    }

    // --- the wire ---

    public Enrolled enrol(String token, String name, String version) {
        JSONObject message = object("token", token, "name", name, "version", version);
        return message("POST", "/devices", message, Enrolled::new);
    }

    public CheckedIn checkIn(CheckIn message) {
        return message("POST", "/check-in", json(message::toJson), CheckedIn::new);
    }

    /** What changed after a version; null when nothing did. */
    public Tensors weights(String job, int since) {
        String path = "/jobs/" + Address.part(job) + "/weights?since=" + since;
        return request("GET", path, null, "", LARGE, 0, answer -> answer.status == 204 ? null : answer.tensors());
    }

    /** Records of the steps after a version, none after `wait` seconds without one; or weights, if they are less. */
    public Steps steps(String job, int since, double wait) {
        String asked = "/steps?since=" + since + "&wait=" + String.format(Locale.ROOT, "%.1f", wait);
        return request("GET", "/jobs/" + Address.part(job) + asked, null, "", LARGE, wait, answer ->
                answer.type.equals(SAFETENSORS)
                        ? new Steps(null, answer.tensors())
                        : new Steps(Scalars.decode(answer.body), null));
    }

    public Receipt sendUpdate(String task, byte[] data) {
        return send("/tasks/" + Address.part(task) + "/update", data, SAFETENSORS);
    }

    public Receipt sendJvps(String task, int iteration, byte[] data) {
        return send("/tasks/" + Address.part(task) + "/jvps/" + iteration, data, "application/octet-stream");
    }

    public Receipt sendFailure(String task, String reason) {
        String told = reason.substring(0, Math.min(reason.length(), 500));
        return message("POST", "/tasks/" + Address.part(task) + "/failure", object("reason", told), Receipt::new);
    }

    /** A file of a bundle from some byte on; 206 when it does start there. Not repeated: to be used in `repeat`. */
    public Reply file(String bundle, String path, long start) throws IOException {
        String where = "/bundles/" + Address.part(bundle) + "/" + Address.path(path);
        Reply reply = reply("GET", where, null, "", 0, start);
        if (reply.status >= 300 && reply.status != 416) {
            try (Reply refused = reply) {
                throw refusal(refused, refused.all(SMALL));
            }
        }
        return reply;
    }

    // --- one request, until it is answered ---

    private interface Read<T> {
        T from(Answer answer);
    }

    private interface Parse<T> {
        T from(JSONObject json) throws JSONException;
    }

    /** Something that needs the server. */
    public interface Work<T> {
        T get() throws IOException;
    }

    private <T> T message(String method, String path, JSONObject message, Parse<T> parse) {
        return request(method, path, Json.bytes(message), "application/json", SMALL, 0, answer -> answer.parse(parse));
    }

    private Receipt send(String path, byte[] data, String type) {
        return request("PUT", path, data, type, SMALL, 0, answer -> answer.parse(Receipt::new));
    }

    private <T> T request(
            String method, String path, byte[] content, String type, int limit, double wait, Read<T> read) {
        return read.from(repeat(() -> {
            try (Reply reply = reply(method, path, content, type, wait, 0)) {
                byte[] body = reply.all(limit);
                if (reply.status / 100 != 2) {
                    throw refusal(reply, body);
                }
                return new Answer(reply, body);
            }
        }));
    }

    private Reply reply(String method, String path, byte[] content, String type, double wait, long start)
            throws IOException {
        HttpURLConnection connection = (HttpURLConnection) new URL(url + "/" + VERSION + path).openConnection();
        current = connection;
        if (closed) {
            throw new Stopped();
        }
        prepare(connection, method, seconds + wait);
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
        if (identity != null) {
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

    /** Do something with the server until it succeeds or is refused for good. */
    public <T> T repeat(Work<T> work) {
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
            return Math.min(asked, LONGEST_PAUSE) * random.nextDouble(1.0, 1.25);
        }
        double grown = Math.min(FIRST_PAUSE * Math.pow(2, Math.min(attempt, 20)), LONGEST_PAUSE);
        return random.nextDouble(grown / 4, grown);
    }

    /** The seconds that a Retry-After header asks to wait, given as a number, or as a date by the server's own clock. */
    static double retryAfter(String value, String now) {
        try {
            double found = Double.parseDouble(value);
            return Double.isNaN(found) ? found : Math.max(found, 0);
        } catch (NumberFormatException number) {
            SimpleDateFormat dates = new SimpleDateFormat("EEE, dd MMM yyyy HH:mm:ss zzz", Locale.US);
            try {
                return Math.max((dates.parse(value).getTime() - dates.parse(now).getTime()) / 1000.0, 0);
            } catch (ParseException date) {
                return Double.NaN;
            }
        }
    }

    // --- answers ---

    /** An answer that is there as a whole. */
    private static final class Answer {
        final int status;
        final String url;
        final String type;
        final String version;
        final byte[] body;

        Answer(Reply reply, byte[] body) {
            status = reply.status;
            url = reply.url;
            type = reply.type();
            version = reply.header(VERSION_HEADER);
            this.body = body;
        }

        Tensors tensors() {
            if (!version.matches("\\d{1,9}")) {
                throw new BadAnswerException(url + " does not tell the version of its weights (" + VERSION_HEADER + ")");
            }
            return new Tensors(Integer.parseInt(version), body);
        }

        <T> T parse(Parse<T> parse) {
            try {
                return parse.from(Json.parse(body));
            } catch (JSONException error) {
                throw new BadAnswerException(url + " gives no answer of this version of spry (" + error.getMessage()
                        + "); check the server's address, and that app and server are of one version");
            }
        }
    }

    /** Steps that a server published, or the weights that they lead to: one of the two. */
    public static final class Steps {
        public final List<StepRecord> records;
        public final Tensors tensors;

        Steps(List<StepRecord> records, Tensors tensors) {
            this.records = records;
            this.tensors = tensors;
        }
    }

    private static ServerException refusal(Reply reply, byte[] body) throws IOException {
        String detail = (reply.url + " answers " + reply.status + " " + reply.phrase()).trim();
        String code = "";
        if (reply.type().equals(PROBLEM)) {
            try {
                JSONObject problem = Json.parse(body);
                detail = Json.text(problem, "detail", Json.text(problem, "title", detail));
                code = Json.text(problem, "code", "");
            } catch (JSONException error) {
                detail += ", and no reason that can be read";
            }
        } else if (reply.status >= 300 && reply.status < 500) {
            detail += "; check the server's address";
        }
        double after = retryAfter(reply.header("Retry-After"), reply.header("Date"));
        return reply.status == 401
                ? new UnauthorizedException(detail, code, after)
                : new ServerException(detail, code, reply.status, after);
    }

    // --- messages ---

    private static JSONObject object(String... fields) {
        return json(() -> {
            JSONObject found = new JSONObject();
            for (int i = 0; i < fields.length; i += 2) {
                found.put(fields[i], fields[i + 1]);
            }
            return found;
        });
    }

    private interface Making {
        JSONObject make() throws JSONException;
    }

    private static JSONObject json(Making making) {
        try {
            return making.make();
        } catch (JSONException error) {
            throw new SpryException("a message holds what JSON cannot: " + error.getMessage());
        }
    }
}
