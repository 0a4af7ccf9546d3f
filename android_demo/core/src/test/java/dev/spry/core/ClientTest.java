package dev.spry.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Calendar;
import java.util.Collections;
import java.util.GregorianCalendar;
import java.util.List;
import java.util.Map;

import org.json.JSONObject;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.data.Example;
import dev.spry.core.data.JsonlSource;
import dev.spry.core.store.Disk;
import dev.spry.core.store.Store;
import dev.spry.core.wire.Enrolled;
import dev.spry.core.wire.Report;
import dev.spry.core.wire.Stage;
import dev.spry.core.wire.Task;

/** The outer loop against a server that says anything; rounds with the real server are in tests/test_android.py. */
@Timeout(60)
class ClientTest {
    private static final String ENROLLED = "{\"device\": \"d\", \"secret\": \"\"}";
    private static final String NOTHING = "{\"wait\": 300, \"reason\": \"no job is running\"}";

    /** A phone whose native libraries are missing. */
    private static final Engine BROKEN = new Engine() {
        @Override
        public String name() {
            return "executorch";
        }

        @Override
        public ProgramRunner open(Bundle bundle) throws IOException {
            throw new IOException("no native library for this processor");
        }
    };

    @TempDir
    File home;
    private File rows;
    private Stage stage;

    @BeforeEach
    void open() throws IOException {
        stage = new Stage();
        rows = new File(home, "rows.jsonl");
        Files.write(rows.toPath(), Collections.singletonList("{\"text\": \"the ice\", \"label\": \"no\"}"));
    }

    @AfterEach
    void close() throws IOException {
        stage.close();
    }

    private Client.Builder client() {
        return client(BROKEN);
    }

    private Client.Builder client(Engine engine) {
        return new Client.Builder(new File(home, "home"), stage.address(), engine).data(new JsonlSource(rows)).token("t")
                .tell(stage.told::add).pause(stage.pauses::add).patience(3000);
    }

    private static String task(String runtime, String bundle) {
        return "{\"task\": {\"id\": \"t1\", \"job\": \"j\", \"job_name\": \"news\", \"round\": 1, \"seed\": 1, \"units\": [0],"
                + "\"cut\": 1, \"bundle\": \"" + bundle + "\", \"runtime\": \"" + runtime + "\", \"version\": 0,"
                + "\"iteration\": 0, \"seconds\": 60, \"training\": {}, \"optimizers\": {}, \"batch\": 8}}";
    }

    private List<String> paths() {
        String[] found = new String[stage.seen.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = stage.seen.get(i).path;
        }
        return Arrays.asList(found);
    }

    private String last(String kind) {
        for (int i = stage.told.size() - 1; i >= 0; i--) {
            if (stage.told.get(i).kind.equals(kind)) {
                return stage.told.get(i).message;
            }
        }
        return "nothing of the kind " + kind;
    }

    // --- what jobs ask of rows ---

    @Test
    void rowsThatFitNoJobTakeNoPlace() throws Exception {
        stage.openJobs = "[{\"job\": \"j\", \"job_name\": \"news\", \"task\": \"seq-cls\", \"labels\": [\"good\", \"bad\"]}]";
        stage.then(201, ENROLLED).then(200, NOTHING);
        assertEquals(1, client().conditions(new Conditions(Machine.UNKNOWN).lowMemory(true)).open().run(Client.ONCE).failures);
        String why = "1 of 1 rows have a label that it does not know: 'no' (1)";
        assertEquals("these rows do not fit news: " + why + "; its labels are good, bad", last("warning"));
        JSONObject said = new JSONObject(stage.seen.get(1).text());
        assertEquals(why, said.getJSONObject("unfit").getString("j"));
        assertTrue(said.getBoolean("low_memory"));
    }

    @Test
    void rowsAreLookedAtAgainWhenTheyHaveChanged() throws Exception {
        stage.openJobs = "[{\"job\": \"j\", \"job_name\": \"news\", \"task\": \"seq-cls\", \"labels\": [\"no\"]},"
                + "{\"job\": \"k\", \"job_name\": \"later\", \"task\": \"of-a-later-version\", \"labels\": []}]";
        stage.then(201, ENROLLED).then(200, NOTHING).then(200, NOTHING);
        Client client = client().open();
        assertEquals(0, client.run(Client.ONCE).failures);
        assertEquals(0, new JSONObject(stage.seen.get(1).text()).getJSONObject("unfit").length());
        Files.write(rows.toPath(), Collections.singletonList("{\"text\": \"the ice\", \"label\": \"may\\nbe\"}"));
        assertEquals(0, client.run(Client.ONCE).failures); // the other job may take them
        assertEquals("1 of 1 rows have a label that it does not know: 'may?be' (1)",
                new JSONObject(stage.seen.get(2).text()).getJSONObject("unfit").getString("j"));
    }

    // --- who takes part ---

    @Test
    void aDeviceOfAnEarlierVersionTakesAKeyInPlaceOfItsSecret() throws Exception {
        Store store = new Store(new File(home, "home"), stage.address(), Tell.SILENT);
        store.saveIdentity(new Enrolled("d", "s"));
        stage.problem(404, "http", "a server of an earlier version").then(200, NOTHING);
        client().open().run(Client.ONCE);
        assertEquals("Bearer d.s", stage.seen.get(1).headers.get("authorization"));
        assertEquals("s", store.identity().secret);

        stage.then(200, ENROLLED).then(200, NOTHING);
        client().open().run(Client.ONCE);
        assertEquals(Arrays.asList("/v1/device-key", "/v1/check-in"), paths().subList(2, 4));
        assertEquals("Bearer d.s", stage.seen.get(2).headers.get("authorization"));
        assertTrue(stage.seen.get(3).headers.get("authorization").startsWith("Spry d."));
        assertEquals("", store.identity().secret);
        String key = new JSONObject(stage.seen.get(0).text()).getString("public_key");
        assertEquals(key, new JSONObject(stage.seen.get(2).text()).getString("public_key"));
    }

    @Test
    void aKeyWhoseAnswerWasLostIsSentAgain() throws Exception {
        Store store = new Store(new File(home, "home"), stage.address(), Tell.SILENT);
        store.saveIdentity(new Enrolled("d", "s"));
        stage.problem(401, "unauthorized", "it has a key").then(200, ENROLLED).then(200, NOTHING);
        client().open().run(Client.ONCE);
        assertTrue(stage.seen.get(1).headers.get("authorization").startsWith("Spry d."));
        assertEquals("", store.identity().secret);
    }

    @Test
    void aDeviceEnrolsOnceAndTellsWhatItHas() throws Exception {
        stage.then(201, ENROLLED).then(200, NOTHING).then(200, NOTHING);
        client().open().run(Client.ONCE);
        client().token(null).open().run(Client.ONCE);
        assertEquals(Arrays.asList("/v1/devices", "/v1/check-in", "/v1/check-in"), paths());
        JSONObject told = new JSONObject(stage.seen.get(2).text());
        assertEquals(1, told.getInt("examples"));
        assertEquals("unknown", told.getString("power"));
        assertTrue(told.getLong("resident_bytes") > 1 << 20);
        assertEquals(43, new JSONObject(stage.seen.get(0).text()).getString("public_key").length());
        assertTrue(stage.seen.get(2).headers.get("authorization").matches("Spry d\\.\\d+\\.[\\w-]{86}"));
        assertTrue(stage.pauses.get(0) >= 270 && stage.pauses.get(0) <= 360);
        assertTrue(last("waiting").startsWith("no job is running; next look in about "), last("waiting"));
    }

    @Test
    void withoutATokenItSaysWhereOneComesFrom() {
        SpryException error = assertThrows(SpryException.class, () -> client().token(null).open().run(Client.ONCE));
        assertTrue(error.getMessage().contains("`spry token create`"), error.getMessage());
    }

    @Test
    void aWrongTokenAndARevokedDeviceAreTold() throws Exception {
        stage.problem(401, "unauthorized", "this token is not known; ask for another one");
        assertTrue(assertThrows(UnauthorizedException.class, () -> client().open().run(Client.ONCE))
                .getMessage().contains("this token is not known"));
        assertNull(new Store(new File(home, "home"), stage.address(), Tell.SILENT).identity());
        stage.then(201, ENROLLED).problem(401, "unauthorized", "this device was revoked");
        assertThrows(UnauthorizedException.class, () -> client().open().run(Client.ENDLESS));
        assertNotNull(new Store(new File(home, "home"), stage.address(), Tell.SILENT).identity());
    }

    @Test
    void dataIsLookedAtBeforeAnythingIsSent() throws Exception {
        Files.write(rows.toPath(), new byte[0]);
        assertTrue(assertThrows(DataException.class, () -> client().open().run(Client.ONCE))
                .getMessage().contains("has no example"));
        assertThrows(DataException.class, () -> client().holdout(1).open());
        assertThrows(DataException.class, () -> client().data(null).open().run(Client.ONCE));
        assertTrue(stage.seen.isEmpty());
    }

    // --- tasks that come to nothing ---

    @Test
    void aTaskForAnotherRuntimeGoesBack() throws Exception {
        stage.then(201, ENROLLED).then(200, task("onnx", "b")).then(200, "{\"wait\": 1}");
        Done done = client().open().run(Client.ONCE);
        assertEquals(1, done.failures);
        assertEquals("/v1/tasks/t1/failure", stage.seen.get(2).path);
        String reason = new JSONObject(stage.seen.get(2).text()).getString("reason");
        assertTrue(reason.startsWith("the task is for the runtime onnx, this device offers executorch"), reason);
        assertTrue(last("failed").contains(reason));
    }

    @Test
    void aRuntimeThatCannotBeLoadedIsToldAndTheNextTaskIsTried() throws Exception {
        TinyBundle tiny = new TinyBundle();
        byte[] manifest = tiny.manifest();
        String name = Disk.hex(Disk.sha256().digest(manifest));
        stage.otherwise((request, to) -> {
            String path = request.path.split("/", 5)[4];
            Stage.send(to, 200, path.equals("manifest.json") ? manifest : tiny.files.get(path));
        });
        stage.then(201, ENROLLED);
        for (int i = 0; i < 2; i++) {
            stage.then(request -> request.path.endsWith("/check-in"), 200, task("executorch", name));
            stage.then(request -> request.path.endsWith("/failure"), 200, "{\"wait\": 1}");
        }
        stage.then(request -> request.path.endsWith("/check-in"), 401, "");
        assertThrows(UnauthorizedException.class, () -> client().open().run(Client.ENDLESS));
        assertEquals(2, Collections.frequency(stage.kinds(), "failed"));
        assertTrue(last("failed").contains("no native library for this processor"), last("failed"));
        double first = stage.pauses.get(0);
        double second = stage.pauses.get(1);
        assertTrue(first >= 4.5 && first <= 6 && second >= 9 && second <= 12, stage.pauses.toString());
    }

    /** Of programs that are not what a runtime takes: it may throw anything. */
    @ParameterizedTest
    @ValueSource(classes = {IllegalArgumentException.class, ArrayIndexOutOfBoundsException.class, StackOverflowError.class})
    void whateverARuntimeThrowsIsToldAndTheNextTaskIsTried(Class<? extends Throwable> kind) throws Exception {
        TinyBundle tiny = new TinyBundle();
        byte[] manifest = tiny.manifest();
        stage.otherwise((request, to) -> {
            String path = request.path.split("/", 5)[4];
            Stage.send(to, 200, path.equals("manifest.json") ? manifest : tiny.files.get(path));
        });
        stage.then(201, ENROLLED);
        for (int i = 0; i < 2; i++) {
            stage.then(request -> request.path.endsWith("/check-in"), 200,
                    task("executorch", Disk.hex(Disk.sha256().digest(manifest))));
            stage.then(request -> request.path.endsWith("/failure"), 200, "{\"wait\": 1}");
        }
        stage.then(request -> request.path.endsWith("/check-in"), 401, "");
        Engine strange = new Engine() {
            @Override
            public String name() {
                return "executorch";
            }

            @Override
            public ProgramRunner open(Bundle bundle) {
                throw ClientTest.<RuntimeException>any(kind);
            }
        };
        assertThrows(UnauthorizedException.class, () -> client(strange).open().run(Client.ENDLESS));
        assertEquals(2, Collections.frequency(stage.kinds(), "failed"));
        assertTrue(last("failed").contains(kind.getSimpleName()), last("failed"));
    }

    @SuppressWarnings("unchecked")
    private static <T extends Throwable> T any(Class<? extends Throwable> kind) {
        try {
            return (T) kind.getConstructor(String.class).newInstance("of a strange bundle");
        } catch (ReflectiveOperationException error) {
            throw new AssertionError(error);
        }
    }

    @Test
    void aRuntimeThatIsMissingGivesTheTaskBackAndEndsTheRun() throws Exception {
        TinyBundle tiny = new TinyBundle();
        byte[] manifest = tiny.manifest();
        stage.otherwise((request, to) -> {
            String path = request.path.split("/", 5)[4];
            Stage.send(to, 200, path.equals("manifest.json") ? manifest : tiny.files.get(path));
        });
        stage.then(201, ENROLLED).then(200, task("executorch", Disk.hex(Disk.sha256().digest(manifest))));
        stage.then(request -> request.path.endsWith("/failure"), 200, "{\"wait\": 1}");
        Engine missing = new Engine() {
            @Override
            public String name() {
                return "executorch";
            }

            @Override
            public ProgramRunner open(Bundle bundle) {
                throw new UnsatisfiedLinkError("libexecutorch.so");
            }
        };
        assertThrows(LinkageError.class, () -> client(missing).open().run(Client.ENDLESS));
        assertTrue(last("failed").endsWith("the runtime executorch cannot be loaded: libexecutorch.so"), last("failed"));
        assertEquals("/v1/tasks/t1/failure", stage.seen.get(stage.seen.size() - 1).path);
    }

    /** A runtime that gives ones, whatever it runs, of a version that can be named. */
    private static final class Ones implements Engine, ProgramRunner {
        String version = "";
        int runs;

        @Override
        public String name() {
            return "executorch";
        }

        @Override
        public String version() {
            return version;
        }

        @Override
        public ProgramRunner open(Bundle bundle) {
            return this;
        }

        @Override
        public String runtime() {
            return name();
        }

        @Override
        public Tensor[] run(ProgramSpec program, Tensor[] inputs) {
            runs++;
            return new Tensor[] {Tensor.of(new float[] {1, 1}, 2)};
        }

        @Override
        public void release(ProgramSpec program) {}

        @Override
        public void close() {}
    }

    /** A server whose one bundle expects a loss of this size; its name. */
    private String expecting(double size) throws Exception {
        byte[] manifest = new TinyBundle().tried(size).manifest();
        Map<String, byte[]> files = new TinyBundle().files;
        stage.otherwise((request, to) -> {
            String path = request.path.split("/", 5)[4];
            Stage.send(to, 200, path.equals("manifest.json") ? manifest : files.get(path));
        });
        return Disk.hex(Disk.sha256().digest(manifest));
    }

    private void offer(String bundle) {
        stage.then(request -> request.path.endsWith("/check-in"), 200, task("executorch", bundle));
        stage.then(request -> request.path.endsWith("/failure"), 200, "{\"wait\": 1}");
    }

    @Test
    void aRuntimeWithWrongResultsEndsTheRunAndItsBundleIsDownloadedOnce() throws Exception {
        Ones engine = new Ones();
        String bundle = expecting(2);
        stage.then(201, ENROLLED);
        for (String version : new String[] {"one", "one", "two", "", ""}) {
            engine.version = version;
            offer(bundle);
            String told = assertThrows(
                    WrongResultsException.class, () -> client(engine).open().run(Client.ENDLESS)).getMessage();
            assertTrue(told.startsWith("the runtime executorch gives wrong results here: loss of head.plain [2x4] is off "
                    + "by 0.5 of its size, at most 0.001 was expected; update the app"), told);
            assertTrue(last("failed").endsWith(told), last("failed"));
            Stage.Request failure = stage.seen.get(stage.seen.size() - 1);
            assertEquals(told, new JSONObject(failure.text()).getString("reason"));
        }
        assertEquals(4, engine.runs);
        assertEquals(4, Collections.frequency(paths(), "/v1/bundles/" + bundle + "/tokenizer.json"));
    }

    @Test
    void aRuntimeWithRightResultsIsTriedOnceForEachVersion() throws Exception {
        Ones engine = new Ones();
        String bundle = expecting(1);
        stage.then(201, ENROLLED);
        for (String version : new String[] {"one", "one", "two", "", ""}) {
            engine.version = version;
            offer(bundle); // given back, since the bundle has no shape that fits
            assertEquals(1, client(engine).open().run(Client.ONCE).failures);
            assertFalse(last("failed").contains("wrong results"), last("failed"));
        }
        assertEquals(4, engine.runs);
    }

    @Test
    void aRuntimeWithWrongResultsPredictsNothing() throws Exception {
        Ones engine = new Ones();
        stage.then(201, ENROLLED);
        String bundle = expecting(1);
        offer(bundle);
        client(engine).open().run(Client.ONCE);
        List<Example> texts = Collections.singletonList(new Example("the ice", null, 0));
        File kept = new Store(new File(home, "home"), stage.address(), Tell.SILENT).bundle(bundle);
        Files.write(new File(kept, "manifest.json").toPath(), new TinyBundle().tried(2).manifest());
        assertThrows(WrongResultsException.class, () -> client(engine).open().predict(texts, false));
    }

    @Test
    void aFullDiskEndsTheRunWithItsMessage() throws Exception {
        TinyBundle tiny = new TinyBundle();
        byte[] manifest = tiny.manifest("executorch/head.pte", "bytes", 1L << 60);
        String name = Disk.hex(Disk.sha256().digest(manifest));
        stage.then(201, ENROLLED).then(200, task("executorch", name));
        stage.then((request, to) -> Stage.send(to, 200, manifest)).then(200, "{\"wait\": 1}");
        StoreException error = assertThrows(StoreException.class, () -> client().open().run(Client.ENDLESS));
        assertTrue(error.getMessage().contains("is full"), error.getMessage());
        assertEquals("/v1/tasks/t1/failure", stage.seen.get(stage.seen.size() - 1).path);
    }

    // --- results ---

    private Store withAResult() throws Exception {
        Store store = new Store(new File(home, "home"), stage.address(), Tell.SILENT);
        Task task = new Task(new JSONObject(task("executorch", "b")).getJSONObject("task"));
        store.job("j").begin(task);
        store.job("j").saveUpdate(Collections.singletonMap("a", Tensor.of(new float[] {1}, 1)),
                new Report(1, 1, 0.5));
        return store;
    }

    @Test
    void aFinishedResultIsSentByTheNextRun() throws Exception {
        Store store = withAResult();
        byte[] update = store.job("j").update();
        stage.then(201, ENROLLED).then(200, "{\"wait\": 0, \"repeated\": true}");
        assertEquals(1, client().open().run(1).rounds);
        assertEquals(Arrays.asList("/v1/devices", "/v1/tasks/t1/update"), paths());
        assertEquals(update.length, stage.seen.get(1).body.length);
        assertTrue(last("uploaded").endsWith("(it had it already)"));
        assertNull(store.job("j").task());
    }

    @Test
    void aResultStaysWhereTheServerIsGone() throws Exception {
        Store store = withAResult();
        stage.then(201, ENROLLED);
        assertThrows(UnreachableException.class, () -> client().patience(0).open().run(1));
        assertNotNull(store.job("j").update());
        stage.problem(409, "late", "the round is over").then(200, NOTHING);
        Done done = client().open().run(Client.ONCE);
        assertEquals(1, done.late);
        assertEquals(0, done.failures);
        assertNull(store.job("j").update());
        assertEquals("round 1: the round is over", last("late"));
    }

    // --- conditions and stopping ---

    @Test
    void conditionsAreAskedBeforeTheServer() throws Exception {
        stage.then(201, ENROLLED);
        Conditions charging = new Conditions(Machine.UNKNOWN).onlyCharging(true);
        client().conditions(charging).open().run(Client.ONCE);
        assertEquals(Collections.singletonList("/v1/devices"), paths());
        assertTrue(last("waiting").startsWith("the system does not tell its power source"), last("waiting"));
        Conditions free = new Conditions(Machine.UNKNOWN).unmeteredOnly(true);
        assertTrue(free.refusal(Calendar.getInstance()).reason.startsWith("the network is metered"));
        assertNull(new Conditions(Machine.UNKNOWN).refusal(Calendar.getInstance()));
        assertNull(new Conditions(Machine.UNKNOWN).memory());
        assertEquals(5L, new Conditions(Machine.UNKNOWN).maxMemory(5).memory());
    }

    @Test
    void hoursMayGoAcrossMidnight() {
        Hours night = Hours.parse("22:30-6");
        assertTrue(night.contain(new GregorianCalendar(2026, 0, 1, 23, 0)));
        assertTrue(night.contain(new GregorianCalendar(2026, 0, 1, 5, 59)));
        assertFalse(night.contain(new GregorianCalendar(2026, 0, 1, 6, 0)));
        assertEquals(1800, night.until(new GregorianCalendar(2026, 0, 1, 22, 0)));
        assertEquals("22:30-06:00", night.toString());
        for (String wrong : new String[] {"", "22", "25-6", "22:75-6", "6-6", "a-b"}) {
            assertThrows(SpryException.class, () -> Hours.parse(wrong), wrong);
        }
    }

    @Test
    void stoppingEndsAWaitAtOnce() throws Exception {
        stage.then(201, ENROLLED).then(200, NOTHING);
        Client client = client().pause(null).tell(event -> {
            stage.told.add(event);
            if (event.kind.equals("waiting")) {
                new Thread(stopper::stop).start();
            }
        }).open();
        stopper = client;
        long started = System.nanoTime();
        assertTrue(client.run(Client.ENDLESS).stopped);
        assertTrue(System.nanoTime() - started < 10e9);
        assertEquals("stopped", stage.kinds().get(stage.told.size() - 1));
        new Store(new File(home, "home"), stage.address(), Tell.SILENT).lock().close();
    }

    private volatile Client stopper;

    @Test
    void aWaitAboveTheLongestEndsTheRun() throws Exception {
        stage.then(201, ENROLLED).then(200, NOTHING);
        assertTrue(client().pause(null).longestWait(120).open().run(Client.ENDLESS).stopped);
        assertEquals("stopped", stage.kinds().get(stage.told.size() - 1));
    }

    // --- prediction ---

    @Test
    void predictionSaysWhatIsMissing() throws Exception {
        List<Example> texts = Collections.singletonList(new Example("the ice", null, 0));
        assertTrue(client().open().predict(Collections.emptyList(), true).isEmpty());
        assertTrue(assertThrows(StoreException.class, () -> client().open().predict(texts, false))
                .getMessage().contains("holds no job yet"));
    }
}
