package dev.spry.core.wire;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.Random;

import org.json.JSONObject;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import dev.spry.core.BadAnswerException;
import dev.spry.core.Pause;
import dev.spry.core.ServerException;
import dev.spry.core.SpryException;
import dev.spry.core.Stopped;
import dev.spry.core.UnauthorizedException;
import dev.spry.core.UnreachableException;
import dev.spry.core.bundle.Keys;

@Timeout(60)
class ServerTest {
    private static final String[] TENSORS = {"Content-Type", "application/vnd.safetensors", "X-Spry-Version", "7"};
    private static final int MOST = 1 << 10;
    private static final String WAIT = "{\"wait\": 1.0}";
    private Stage stage;

    @BeforeEach
    void open() throws IOException {
        stage = new Stage();
    }

    @AfterEach
    void close() throws IOException {
        stage.close();
    }

    private static CheckIn checkIn() {
        CheckIn message = new CheckIn(Collections.singletonList("executorch"));
        return message;
    }

    // --- messages ---

    @Test
    void aDeviceShowsWhoItIs() throws Exception {
        stage.then(200, "{\"device\": \"d\", \"secret\": \"s\"}");
        stage.then(200, "{\"wait\": 3.5, \"reason\": \"later\", \"new_field\": 1}");
        Server server = stage.device().open();
        server.identify(server.enrol("token", "phone", "1", Keys.make()), null);
        CheckedIn answer = server.checkIn(checkIn());
        assertNull(answer.task);
        assertEquals(3.5, answer.wait);
        assertEquals("later", answer.reason);
        assertEquals("token", new JSONObject(stage.seen.get(0).text()).getString("token"));
        assertNull(stage.seen.get(0).headers.get("authorization"));
        assertEquals("/v1/check-in", stage.seen.get(1).path);
        assertEquals("Bearer d.s", stage.seen.get(1).headers.get("authorization"));
        JSONObject told = new JSONObject(stage.seen.get(1).text());
        assertEquals("executorch", told.getJSONArray("runtimes").getString(0));
        assertFalse(told.has("memory_bytes"));
    }

    @Test
    void weightsAndSteps() {
        stage.then(200, "tensors", TENSORS).then(204, "");
        stage.then(200, "", "Content-Type", "application/vnd.spry.steps").then(200, "tensors", TENSORS);
        stage.then(200, "tensors");
        Server server = stage.device().open();
        Tensors found = server.weights("a/b c", 3, 1.75e9, MOST);
        assertEquals(7, found.version);
        assertArrayEquals("tensors".getBytes(StandardCharsets.UTF_8), found.data);
        assertNull(server.weights("j", 7, 0, MOST));
        assertTrue(server.steps("j", 7, MOST, 0.5).records.isEmpty());
        assertEquals(7, server.steps("j", 7, MOST, 0).tensors.version);
        assertTrue(assertThrows(BadAnswerException.class, () -> server.weights("j", 0, 0, MOST))
                .getMessage().contains("X-Spry-Version"));
        assertEquals("/v1/jobs/a%2Fb%20c/weights?since=3&published=1.75E9", stage.seen.get(0).path);
        assertEquals("/v1/jobs/j/steps?since=7&wait=0.5", stage.seen.get(2).path);
    }

    @Test
    void whatATaskSends() throws Exception {
        stage.then(200, WAIT).then(200, "{\"wait\": 2, \"repeated\": true}").then(200, WAIT);
        Server server = stage.device().open();
        byte[] large = new byte[3 << 20];
        new Random(1).nextBytes(large);
        assertFalse(server.sendUpdate("t", large).repeated);
        assertTrue(server.sendJvps("t", 4, new byte[] {1, 2}).repeated);
        server.sendFailure("t", String.join("", Collections.nCopies(90, "0123456789")));
        assertArrayEquals(large, stage.seen.get(0).body);
        assertEquals("PUT /v1/tasks/t/jvps/4", stage.seen.get(1).method + " " + stage.seen.get(1).path);
        assertEquals(500, new JSONObject(stage.seen.get(2).text()).getString("reason").length());
    }

    // --- repetition ---

    @Test
    void requestsAreRepeatedUntilTheyAreAnswered() {
        stage.then(500, "").then(503, "").problem(429, "busy", "too many", "Retry-After", "40").then(200, WAIT);
        assertEquals(1.0, stage.device().open().checkIn(checkIn()).wait);
        assertEquals(4, stage.seen.size());
        assertTrue(stage.pauses.get(0) <= 0.5);
        assertTrue(stage.pauses.get(1) <= 1);
        assertTrue(stage.pauses.get(2) >= 40 && stage.pauses.get(2) <= 50);
        assertEquals(Arrays.asList("unreachable", "reachable"), stage.kinds());
    }

    @Test
    void aCutConnectionIsNoAnswer() {
        stage.then((request, to) -> to.close());
        stage.then((request, to) -> {
            Stage.head(to, 200, 1000);
            to.getOutputStream().write("{\"wait\"".getBytes(StandardCharsets.UTF_8));
            to.close();
        });
        stage.then(200, WAIT);
        assertEquals(1.0, stage.device().open().checkIn(checkIn()).wait);
    }

    @Test
    void patienceEnds() {
        UnreachableException error = assertThrows(
                UnreachableException.class, () -> stage.device().patience(0).open().checkIn(checkIn()));
        assertTrue(error.getMessage().startsWith(stage.address() + " gives no answer ("), error.getMessage());
    }

    @Test
    void theServersOwnClockSaysWhenToComeBack() {
        // in a year that the device's clock does not show
        String now = "Mon, 01 Jan 2001 10:00:00 GMT";
        stage.problem(503, "paused", "later", "Date", now, "Retry-After", "Mon, 01 Jan 2001 10:01:30 GMT");
        stage.then(200, WAIT);
        stage.device().open().checkIn(checkIn());
        assertTrue(stage.pauses.get(0) >= 90 && stage.pauses.get(0) <= 112.5, stage.pauses.toString());
        assertTrue(Double.isNaN(Refusals.retryAfter("soon", now)));
        assertTrue(Double.isNaN(Refusals.retryAfter("", "")));
        assertEquals(0, Refusals.retryAfter("-5", now));
    }

    // --- refusals ---

    @Test
    void refusalsAreNotRepeated() {
        stage.problem(409, "stale", "that round is over").problem(401, "unauthorized", "no such device");
        Server server = stage.device().open();
        ServerException stale = assertThrows(ServerException.class, () -> server.sendUpdate("t", new byte[1]));
        assertEquals("that round is over", stale.getMessage());
        assertEquals("stale", stale.code);
        assertEquals(409, stale.status);
        assertEquals("no such device",
                assertThrows(UnauthorizedException.class, () -> server.checkIn(checkIn())).getMessage());
        assertEquals(2, stage.seen.size());
    }

    @Test
    void whatAServerSaysSteersNoTerminalAndIsShort() {
        String long_ = String.join("", Collections.nCopies(1000, "\\u001b]0;owned\\u0007"));
        stage.problem(409, "stale", long_).then(200, "{\"device\": \"../x\", \"secret\": \"\"}");
        stage.then(200, "{\"device\": \"d\", \"secret\": \"a\\nb\"}");
        Server server = stage.device().open();
        String told = assertThrows(ServerException.class, () -> server.checkIn(checkIn())).getMessage();
        assertTrue(told.startsWith(" ]0;owned  ]0;owned ") && told.length() == 1000, told);
        for (int i = 0; i < 2; i++) {
            assertTrue(assertThrows(BadAnswerException.class, () -> server.enrol("token", "phone", "1", Keys.make()))
                    .getMessage().contains("an invalid name or secret"));
        }
    }

    @Test
    void weightsAreNoLongerThanTheManifestSays() {
        stage.then(200, String.join("", Collections.nCopies(MOST + 1, "x")), TENSORS);
        assertTrue(assertThrows(BadAnswerException.class, () -> stage.device().open().weights("j", 0, 0, MOST))
                .getMessage().contains("more than 1,024 bytes"));
    }

    @Test
    void aServerOfAnotherVersionIsNamed() {
        stage.then(404, "<html>").then(200, "<html>").then(200, "{\"task\": {\"id\": 5}}").then(200, "{\"wait\": \"x\"}");
        stage.then(302, "", "Location", "http://127.0.0.1:1/");
        Server server = stage.device().open();
        String missing = assertThrows(ServerException.class, () -> server.checkIn(checkIn())).getMessage();
        assertTrue(missing.contains("/v1/check-in answers 404") && missing.contains("check the server's address"), missing);
        for (int i = 0; i < 3; i++) {
            String message = assertThrows(BadAnswerException.class, () -> server.checkIn(checkIn())).getMessage();
            assertTrue(message.contains("no answer of this version of spry"), message);
        }
        assertTrue(assertThrows(ServerException.class, () -> server.checkIn(checkIn())).getMessage().contains("302"));
    }

    @Test
    void anAnswerLargerThanAnyMessageIsNotRead() {
        stage.then((request, to) -> {
            Stage.head(to, 200, 1L << 40);
            byte[] part = new byte[1 << 16];
            while (true) {
                to.getOutputStream().write(part);
            }
        });
        assertTrue(assertThrows(BadAnswerException.class, () -> stage.device().open().checkIn(checkIn()))
                .getMessage().contains("more than 1,048,576 bytes"));
    }

    // --- answers that never come ---

    private static void drip(Socket to, String text) throws IOException, InterruptedException {
        for (char one : text.toCharArray()) {
            to.getOutputStream().write(one);
            to.getOutputStream().flush();
            Thread.sleep(50);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"silent", "head", "body"})
    void aServerThatDripsHoldsNobody(String how) {
        stage.otherwise((request, to) -> {
            String head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n";
            switch (how) {
                case "silent":
                    Thread.sleep(30_000);
                    break;
                case "head":
                    drip(to, head + "X-Slow: " + String.join("", Collections.nCopies(1000, "x")));
                    break;
                default:
                    to.getOutputStream().write((head + "\r\n").getBytes(StandardCharsets.US_ASCII));
                    drip(to, String.join("", Collections.nCopies(1000, "x")));
            }
        });
        long started = System.nanoTime();
        assertThrows(UnreachableException.class,
                () -> stage.device().seconds(0.3).patience(0).open().checkIn(checkIn()));
        assertTrue(System.nanoTime() - started < 10e9, "a slow server held the device");
    }

    @Test
    void closingEndsWhatIsUnderWay() throws Exception {
        stage.otherwise((request, to) -> Thread.sleep(30_000));
        Server server = stage.device().open();
        Thread closing = new Thread(() -> {
            while (stage.seen.isEmpty()) {
                Thread.yield();
            }
            server.close();
        });
        closing.start();
        assertThrows(Stopped.class, () -> server.checkIn(checkIn()));
        closing.join();
        assertThrows(Stopped.class, () -> server.checkIn(checkIn()));
    }

    @Test
    void closingEndsAnUploadThatNobodyReads() throws Exception {
        long started = System.nanoTime();
        try (ServerSocket deaf = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Server server = new Server.Builder("http://127.0.0.1:" + deaf.getLocalPort()).open();
            Thread closing = new Thread(() -> {
                Pause.SLEEP.pause(0.5);
                server.close();
            });
            closing.start();
            assertThrows(Stopped.class, () -> server.sendUpdate("t", new byte[64 << 20]));
            closing.join();
            assertTrue(System.nanoTime() - started < 15e9, "it went on after it was closed");
        }
    }

    // --- addresses ---

    @ParameterizedTest
    @ValueSource(strings = {"", "spry.example.org", "ftp://spry.example.org", "http://", "http://a:999999", "http://a?b"})
    void whatIsNoAddressIsRefused(String url) {
        assertTrue(assertThrows(SpryException.class, () -> Address.checked(url))
                .getMessage().contains("give one such as https://spry.example.org"));
    }

    @Test
    void openConnectionsAreWarnedOf() {
        assertFalse(Address.travelsOpen("https://spry.example.org"));
        assertFalse(Address.travelsOpen("http://127.0.0.1:8000"));
        assertFalse(Address.travelsOpen("http://localhost"));
        assertTrue(Address.travelsOpen("http://192.168.1.5:8000"));
        assertEquals("http://10.0.2.2:8000", Address.checked("http://10.0.2.2:8000/ "));
        new Server.Builder("http://192.168.1.5").tell(stage.told::add).open().warnIfOpen();
        assertEquals(Collections.singletonList("warning"), stage.kinds());
    }
}
