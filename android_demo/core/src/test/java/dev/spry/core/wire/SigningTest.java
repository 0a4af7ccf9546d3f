package dev.spry.core.wire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

import dev.spry.core.UnauthorizedException;
import dev.spry.core.bundle.Keys;

/** What stands on the wire; that a real server takes it, in tests/test_android.py. */
@Timeout(60)
class SigningTest {
    private static final String NOTHING = "{\"wait\": 1, \"reason\": \"\"}";

    private final String key = Keys.make();
    private Stage stage;
    private Server server;

    @BeforeEach
    void open() throws IOException {
        stage = new Stage();
        server = stage.device().open();
        server.identify(new Enrolled("d-1", ""), new Signing("d-1", key, stage.address()));
    }

    @AfterEach
    void close() throws IOException {
        stage.close();
    }

    private long checkIn() {
        CheckIn message = new CheckIn(Collections.singletonList("executorch"));
        server.checkIn(message);
        return moment(stage.seen.size() - 1);
    }

    private long moment(int number) {
        return Long.parseLong(stage.seen.get(number).headers.get("authorization").split("\\.")[1]);
    }

    /** As the server works it out again. */
    private void checkSigned(int number, String query, String path) {
        Stage.Request seen = stage.seen.get(number);
        String digest = seen.body.length == 0 ? "" : Signing.digest(seen.body);
        assertEquals(digest, seen.headers.getOrDefault("content-digest", ""));
        String text = "spry request\n" + seen.method + "\n" + moment(number) + "\n" + digest + "\n" + query + "\n" + path;
        String signature = Keys.sign(key, text.getBytes(StandardCharsets.UTF_8));
        assertEquals("Spry d-1." + moment(number) + "." + signature, seen.headers.get("authorization"));
    }

    @Test
    void aSignatureStandsOverAllOfARequest() {
        stage.then(200, NOTHING).then(204, "").then(200, "{\"wait\": 0}");
        checkIn();
        server.weights("a/b c+d", 3, 0, 1 << 10);
        server.sendUpdate("t", new byte[3 << 20]);
        checkSigned(0, "", "/v1/check-in");
        checkSigned(1, "since=3", "/v1/jobs/a/b c+d/weights");
        checkSigned(2, "", "/v1/tasks/t/update");
        assertTrue(moment(0) < moment(1) && moment(1) < moment(2));
    }

    @Test
    void aProxyMayTakeTheBeginningOfAPathOff() {
        Server behind = new Server.Builder(stage.address() + "/spry").pause(stage.pauses::add).patience(30).open();
        behind.identify(new Enrolled("d-1", ""), new Signing("d-1", key, stage.address() + "/spry"));
        stage.then(204, "");
        behind.weights("j", 1, 0, 1 << 10);
        assertEquals("/spry/v1/jobs/j/weights?since=1", stage.seen.get(0).path);
        checkSigned(0, "since=1", "/v1/jobs/j/weights");
    }

    @Test
    void whatIsNoNewerThanWhatCameBeforeIsSignedAnew() {
        stage.problem(425, "replayed", "signed no later").then(200, NOTHING);
        checkIn();
        assertTrue(moment(0) < moment(1));
        assertTrue(stage.pauses.isEmpty());
    }

    @Test
    void aWrongClockFollowsTheServers() {
        stage.problem(401, "unauthorized", "too old", "Date", "Fri, 01 Jan 2100 00:00:00 GMT").then(200, NOTHING);
        checkIn();
        assertTrue(Math.abs(moment(1) - 4102444800000L) < 60_000);
        stage.problem(401, "unauthorized", "revoked", "Date", "Fri, 01 Jan 2100 00:00:00 GMT");
        assertThrows(UnauthorizedException.class, this::checkIn);
        assertEquals(3, stage.seen.size());
    }
}
