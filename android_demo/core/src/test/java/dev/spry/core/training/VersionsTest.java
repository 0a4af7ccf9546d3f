package dev.spry.core.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.io.File;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Collections;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import dev.spry.core.Tell;
import dev.spry.core.Tensor;
import dev.spry.core.TinyBundle;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.numbers.Safetensors;
import dev.spry.core.store.Disk;
import dev.spry.core.store.JobStore;
import dev.spry.core.store.Store;
import dev.spry.core.wire.Stage;
import dev.spry.core.wire.Task;

/** Which weights a task starts from: those that are kept, what changed since, or all anew. */
class VersionsTest {
    private static final Map<String, Tensor> KEPT =
            Collections.singletonMap("head.bias", Tensor.of(new float[] {4, 5, 6}, 3));

    @TempDir
    File home;
    private Stage stage;
    private Bundle bundle;

    @BeforeEach
    void open() throws Exception {
        stage = new Stage();
        TinyBundle tiny = new TinyBundle();
        File folder = new File(home, "bundle");
        for (Map.Entry<String, byte[]> file : tiny.files.entrySet()) {
            File path = new File(folder, file.getKey());
            Files.createDirectories(path.getParentFile().toPath());
            Files.write(path.toPath(), file.getValue());
        }
        Files.write(new File(folder, "manifest.json").toPath(), tiny.manifest());
        bundle = Bundle.open(folder, "executorch");
    }

    @AfterEach
    void close() throws Exception {
        stage.close();
    }

    private static Task task(int version, double published) throws Exception {
        return new Task(new JSONObject("{\"id\": \"t\", \"job\": \"j\", \"job_name\": \"n\", \"round\": 1, \"seed\": 1,"
                + "\"units\": [], \"cut\": 1, \"bundle\": \"b\", \"runtime\": \"executorch\", \"version\": " + version
                + ", \"iteration\": 0, \"seconds\": 60, \"training\": {}, \"optimizers\": {}, \"batch\": 8,"
                + "\"published\": " + published + "}"));
    }

    /** 77 is when a version was published that a restored server has lost. */
    @ParameterizedTest
    @CsvSource({
        "0, 0, 5, 50, 0", "5, 50, 5, 50, none", "3, 30.25, 5, 50, 3&published=30.25",
        "5, 77, 5, 50, -1", "3, 77, 5, 50, 3&published=77.0 -1", "7, 77, 5, 50, 0",
        "5, 0, 5, 50, -1", "3, 0, 5, 50, -1", "5, 77, 5, 0, none", "3, 0, 5, 0, 3"
    })
    void weightsOfALostLineAreFetchedAnew(int version, double when, int wanted, double published, String asked)
            throws Exception {
        JobStore job = new Store(new File(home, "store"), stage.address(), Tell.SILENT).job("j");
        if (version > 0) {
            job.saveWeights("b", new Kept(version, KEPT, Collections.<String, Tensor>emptyMap(), when));
        }
        byte[] sent = head(7);
        StringBuilder seen = new StringBuilder();
        stage.otherwise((request, to) -> {
            String since = request.path.split("since=")[1];
            seen.append(seen.length() > 0 ? " " : "").append(since);
            if (since.endsWith("published=77.0")) {
                byte[] stale = "{\"title\": \"\", \"status\": 409, \"detail\": \"\", \"code\": \"stale\"}".getBytes("UTF-8");
                Stage.send(to, 409, stale, "Content-Type", "application/problem+json");
                return;
            }
            Stage.send(to, 200, sent, "X-Spry-Version", String.valueOf(wanted));
        });
        Task task = task(wanted, published);
        Kept found = Versions.current(stage.device().open(), job, bundle, task);
        assertEquals(wanted, found.version);
        assertEquals(asked, seen.length() > 0 ? seen.toString() : "none");
        assertEquals(seen.length() > 0 ? 7 : 4, found.weights.get("head.bias").floats()[0]);
        assertEquals(wanted, Versions.current(stage.device().open(), job, bundle, task).version); // asks nothing more
        assertEquals(asked, seen.length() > 0 ? seen.toString() : "none");
    }

    /** A mirror that gives other weights than the task names costs a line, and the server is asked. */
    @ParameterizedTest
    @CsvSource({"true", "false"})
    void weightsComeFromAMirrorIfTheyAreThoseOfTheTask(boolean honest) throws Exception {
        byte[] right = head(7);
        String hash = Disk.hex(Disk.sha256().digest(right));
        stage.otherwise((request, to) -> Stage.send(to, 200, right, "X-Spry-Version", "5"));
        try (Stage mirror = new Stage()) {
            mirror.otherwise((request, to) -> {
                assertEquals("/weights/" + hash, request.path);
                assertFalse(request.headers.containsKey("authorization"));
                Stage.send(to, 200, honest ? right : head(666));
            });
            JSONObject task = task(5, 50).toJson();
            task.put("weights", hash).put("mirrors", new JSONArray(Arrays.asList(mirror.address())));
            JobStore job = new Store(new File(home, "store"), stage.address(), Tell.SILENT).job("j");
            Kept found = Versions.current(stage.device().open(), job, bundle, new Task(task));
            assertEquals(5, found.version);
            assertEquals(7, found.weights.get("head.bias").floats()[0]);
            assertEquals(honest ? 0 : 1, stage.seen.size());
            assertEquals(honest ? 0 : 1, stage.told.size());
        }
    }

    private static byte[] head(float value) {
        return new Safetensors(
                Collections.singletonMap("head.bias", Tensor.of(new float[] {value, 8, 9}, 3)),
                Collections.<String, String>emptyMap()).encoded();
    }
}
