package dev.spry.core.wire;

import java.io.Closeable;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.regex.Pattern;

import javax.net.ssl.SSLSocketFactory;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.BadAnswerException;
import dev.spry.core.Event;
import dev.spry.core.Pause;
import dev.spry.core.ServerException;
import dev.spry.core.SpryException;
import dev.spry.core.Tell;
import dev.spry.core.bundle.Keys;
import dev.spry.core.sums.View;

/**
 * One server, as a device sees it: requests that are repeated until they are answered, and answers that are checked.
 *
 * <p>Every request of the wire can be repeated without harm. A refusal becomes a ServerException with its code.
 */
public final class Server implements Closeable {
    public static final String VERSION = "v1";
    /** For connecting and between two pieces of an answer. */
    public static final double SECONDS = 30;

    /** Bytes that an answer may have: a message; a list of jobs, each with its labels. */
    private static final int SMALL = 1 << 20;
    private static final int JOBS = 4 << 20;
    private static final Pattern DEVICE = Pattern.compile("[A-Za-z0-9_-]{1,64}");
    private static final Pattern SECRET = Pattern.compile("[!-~]{0,200}");
    private static final String SAFETENSORS = "application/vnd.safetensors";
    private static final String OCTETS = "application/octet-stream";
    private static final String VERSION_HEADER = "X-Spry-Version";

    public final String url;

    private final Tell tell;
    private final Exchange exchange;
    private final SSLSocketFactory trust;
    private volatile Exchange mirror;

    private Server(Builder builder) {
        url = Address.checked(builder.url);
        tell = builder.tell;
        trust = builder.trust;
        String root = url + "/" + VERSION;
        exchange = new Exchange(url, root, builder.pause, tell, builder.seconds, builder.patience, trust);
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

    /** Who this device is, once it is enrolled, and how it signs; null where it has a secret to send. */
    public void identify(Enrolled who, Signing how) {
        exchange.identify(who, how);
    }

    /** End what is under way, from any thread; requests after this end with Stopped. */
    @Override
    public void close() {
        exchange.close();
        Exchange asked = mirror;
        if (asked != null) {
            asked.close();
        }
    }

    public void warnIfOpen() {
        if (Address.travelsOpen(url)) {
            String why = " is not encrypted: the device's secret travels in the open; use https";
            tell.tell(Event.of("warning", url + why));
        }
    }

    // --- the wire ---

    /** `key` is the secret one by which the device signs its requests from then on; it stays here. */
    public Enrolled enrol(String token, String name, String version, String key) {
        String shown = Keys.publicOf(key);
        String proof = proof(key, "spry enrolment\n" + token + "\n" + shown);
        Enrolment message = new Enrolment(token, name);
        message.version = version;
        message.publicKey = shown;
        message.proof = proof;
        return identity(message("POST", "/devices", json(message::toJson), Enrolled::new));
    }

    /** A key in place of the secret that a device enrolled with. */
    public Enrolled sendKey(String device, String key) {
        String shown = Keys.publicOf(key);
        String proof = proof(key, "spry key\n" + device + "\n" + shown);
        DeviceKey message = new DeviceKey(shown);
        message.proof = proof;
        return identity(message("PUT", "/device-key", json(message::toJson), Enrolled::new));
    }

    /** Refuse an identity with other characters: it is sent with each request, and kept for ever. */
    private static Enrolled identity(Enrolled enrolled) {
        if (!DEVICE.matcher(enrolled.device).matches() || !SECRET.matcher(enrolled.secret).matches()) {
            throw new BadAnswerException("the server gives this device an invalid name or secret; check its "
                    + "address, and that app and server are of one version");
        }
        return enrolled;
    }

    /** That the secret half of a key is here. */
    private static String proof(String key, String text) {
        return Keys.sign(key, text.getBytes(StandardCharsets.UTF_8));
    }

    public CheckedIn checkIn(CheckIn message) {
        return message("POST", "/check-in", json(message::toJson), CheckedIn::new);
    }

    /** The jobs that run; none where the server is of an earlier version. */
    public List<OpenJob> openJobs() {
        try {
            return request("GET", "/open-jobs", null, "", JOBS, 0, answer -> answer.parseAll(OpenJob::new));
        } catch (ServerException error) {
            if (error.status != 404) {
                throw error;
            }
            return Collections.emptyList();
        }
    }

    /** What changed after a version that was published then, at most so many bytes; null when nothing did. */
    public Tensors weights(String job, int since, double published, int most) {
        String known = published > 0 && since > 0 ? "&published=" + published : "";
        String path = "/jobs/" + Address.part(job) + "/weights?since=" + since + known;
        return request("GET", path, null, "", most, 0, answer -> answer.status == 204 ? null : answer.tensors());
    }

    /** Records of the steps after a version, none after `wait` seconds without one; or weights, if they are less. */
    public Steps steps(String job, int since, int most, double wait) {
        String asked = "/steps?since=" + since + "&wait=" + String.format(Locale.ROOT, "%.1f", wait);
        return request("GET", "/jobs/" + Address.part(job) + asked, null, "", most, wait, answer ->
                answer.type.equals(SAFETENSORS)
                        ? new Steps(null, answer.tensors())
                        : new Steps(Scalars.decode(answer.body), null));
    }

    public Receipt sendUpdate(String task, byte[] data) {
        return send("/tasks/" + Address.part(task) + "/update", data, SAFETENSORS);
    }

    public Receipt sendJvps(String task, int iteration, byte[] data) {
        return send("/tasks/" + Address.part(task) + "/jvps/" + iteration, data, OCTETS);
    }

    /** Where the sum stands that a task's update is added to. */
    public View sum(String task) {
        String path = "/tasks/" + Address.part(task) + "/sum";
        return request("GET", path, null, "", SMALL, 0, answer -> new View(answer.body));
    }

    /** What a device says for a sum. */
    public Receipt sendMessage(String task, String message, byte[] data) {
        return send("/tasks/" + Address.part(task) + "/sum/" + message, data, OCTETS);
    }

    public Receipt sendMasked(String task, byte[] data) {
        return send("/tasks/" + Address.part(task) + "/update", data, OCTETS);
    }

    public Receipt sendFailure(String task, String reason) {
        String told = reason.substring(0, Math.min(reason.length(), 500));
        return message("POST", "/tasks/" + Address.part(task) + "/failure", json(new Failure(told)::toJson), Receipt::new);
    }

    /** A file of a bundle from some byte on; 206 when it does start there. Not repeated: to be used in `repeat`. */
    public Reply file(String bundle, String path, long start) throws IOException {
        String where = "/bundles/" + Address.part(bundle) + "/" + Address.path(path);
        Reply reply = exchange.reply("GET", where, null, "", 0, start);
        if (reply.status >= 300 && reply.status != 416) {
            try (Reply refused = reply) {
                throw Refusals.of(refused, refused.all(SMALL));
            }
        }
        return reply;
    }

    /** All weights of a task's version, from a mirror; null where none has them, or gives them as it should. */
    public Tensors mirroredWeights(Task task, int most) {
        if (task.weights.isEmpty()) {
            return null;
        }
        byte[] data = new Mirrors(task.mirrors, tell).whole(this, "weights", task.weights, task.weights, most);
        return data == null ? null : new Tensors(task.version, data);
    }

    /** A file of a mirror, which is told nothing of this device and is not asked again. */
    Reply mirrored(String address, String folder, String path, long start) throws IOException {
        mirror = new Exchange(address, address, Pause.SLEEP, tell, Mirrors.SECONDS, 0, trust);
        String where = "/" + Address.part(folder) + "/" + Address.path(path);
        Reply reply = mirror.reply("GET", where, null, "", 0, start).atLeast(Mirrors.SLOWEST);
        if (reply.status != 200 && reply.status != 206) {
            try (Reply refused = reply) {
                throw new IOException(refused.url + " answers " + refused.status + " " + refused.phrase());
            }
        }
        return reply;
    }

    // --- requests ---

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

    /** Do something with the server until it succeeds or is refused for good. */
    public <T> T repeat(Work<T> work) {
        return exchange.repeat(work);
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
            try (Reply reply = exchange.reply(method, path, content, type, wait, 0)) {
                byte[] body = reply.all(limit);
                if (reply.status / 100 != 2) {
                    throw Refusals.of(reply, body);
                }
                return new Answer(reply, body);
            }
        }));
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
                throw new BadAnswerException(
                        url + " does not tell the version of its weights (" + VERSION_HEADER + ")");
            }
            return new Tensors(Integer.parseInt(version), body);
        }

        <T> T parse(Parse<T> parse) {
            try {
                return parse.from(Json.parse(body));
            } catch (JSONException error) {
                throw noAnswer(error);
            }
        }

        <T> List<T> parseAll(Parse<T> parse) {
            try {
                JSONArray given = Json.parseList(body);
                List<T> found = new ArrayList<>();
                for (int i = 0; i < given.length(); i++) {
                    found.add(parse.from(given.getJSONObject(i)));
                }
                return found;
            } catch (JSONException error) {
                throw noAnswer(error);
            }
        }

        private BadAnswerException noAnswer(JSONException error) {
            return new BadAnswerException(url + " gives no answer of this version of spry (" + error.getMessage()
                    + "); check the server's address, and that app and server are of one version");
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

    // --- messages ---

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
