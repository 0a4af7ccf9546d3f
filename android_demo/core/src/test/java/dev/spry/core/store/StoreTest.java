package dev.spry.core.store;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

import org.json.JSONObject;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import dev.spry.core.Event;
import dev.spry.core.StoreException;
import dev.spry.core.Tensor;
import dev.spry.core.training.Kept;
import dev.spry.core.wire.Enrolled;
import dev.spry.core.wire.Report;
import dev.spry.core.wire.Task;

class StoreTest {
    private static final Map<String, Tensor> WEIGHTS =
            Collections.singletonMap("a", Tensor.of(new float[] {1, 2}, 2));
    private static final Map<String, Tensor> STATE =
            Collections.singletonMap("m:a", Tensor.of(new float[] {3, 4}, 2));
    @TempDir
    File home;
    private final List<Event> told = new ArrayList<>();
    private Store store;
    private JobStore job;

    @BeforeEach
    void open() {
        store = new Store(home, "https://spry.example.org:8000/here/", told::add);
        job = store.job("job");
    }

    static Task task(String id) throws Exception {
        return new Task(new JSONObject("{\"id\": \"" + id + "\", \"job\": \"job\", \"job_name\": \"news\", \"round\": 3,"
                + "\"seed\": 9007199254740993, \"units\": [0, 2], \"cut\": 1, \"bundle\": \"b\", \"runtime\": \"onnx\","
                + "\"version\": 2, \"iteration\": 0, \"seconds\": 60.0, \"training\": {\"head_learning_rate\": null},"
                + "\"optimizers\": {\"units\": {}, \"head\": {\"kind\": \"fedavg\"}}, \"batch\": 8, \"later\": 1}"));
    }

    private File file(String name) {
        return new File(store.folder, "jobs/job/" + name);
    }

    @Test
    void aFolderForEachServer() {
        assertTrue(store.folder.getName().matches("spry\\.example\\.org_8000_here-[0-9a-f]{12}"), store.folder.getName());
        assertEquals("spry.example.org", new Store(home, "https://spry.example.org", told::add).folder.getName());
        assertEquals(home, store.folder.getParentFile());
        assertNotEquals(store.bundle("../../x"), store.bundle(".._.._x"));
        assertEquals(new File(store.folder, "bundles"), store.bundle("../../x").getParentFile());
    }

    @Test
    void theIdentityIsForItsUsersEyesOnly() throws Exception {
        assertNull(store.identity());
        store.saveIdentity(new Enrolled(new JSONObject("{\"device\": \"d\", \"secret\": \"s\"}")));
        assertEquals("s", store.identity().secret);
        File path = new File(store.folder, "identity.json");
        assertEquals("rw-------", PosixFilePermissions.toString(Files.getPosixFilePermissions(path.toPath())));
        Files.write(path.toPath(), new byte[] {'{'});
        assertNull(store.identity());
        assertTrue(told.get(0).message.contains("set aside as identity.json.damaged"));
        assertTrue(new File(store.folder, "identity.json.damaged").isFile());
    }

    @Test
    void aTaskSurvivesWithItsWholeSeed() throws Exception {
        job.begin(task("t"));
        assertEquals(9007199254740993L, job.task().seed);
        assertEquals(0.01, job.task().training.learningRate);
        assertEquals("fedyogi", job.task().optimizers.units.kind);
        assertEquals("fedavg", job.task().optimizers.head.kind);
        assertArrayEquals(new int[] {0, 2}, job.task().units);
    }

    @Test
    void aSeedOfASumIsTheDevicesOwn() throws Exception {
        JSONObject sum = new JSONObject("{'place': 0, 'units': [0], 'least': 3}");
        Task given = new Task(new JSONObject(task("t").toJson().toString()).put("sum", sum));
        Task first = job.begin(given);
        assertNotEquals(given.seed, first.seed);
        job.saveUpdate(WEIGHTS, new Report(4, 2, 0.5));
        assertEquals(first.seed, job.begin(given).seed);
        assertEquals(first.seed, job.task().seed);
        assertTrue(job.update().length > 0);
        assertEquals(given.seed, job.begin(task("t")).seed);
        assertNull(job.update());
        assertNotEquals(first.seed, job.begin(given).seed);
    }

    @Test
    void anotherTaskDropsWhatWasLeft() throws Exception {
        job.begin(task("t"));
        job.saveUpdate(WEIGHTS, new Report(4, 2, 0.5));
        assertTrue(job.update().length > 0);
        job.begin(task("t"));
        assertTrue(job.update().length > 0);
        job.begin(task("u"));
        assertNull(job.update());
        job.finish();
        assertNull(job.task());
    }

    @Test
    void progressIsOfOneTaskAndItsData() throws Exception {
        job.begin(task("t"));
        job.saveProgress(task("t"), "data", new Progress(5, 1.5, 12, 2.5, WEIGHTS, STATE));
        Progress found = job.progress(task("t"), "data");
        assertEquals(5, found.step);
        assertEquals(1.5, found.loss);
        assertEquals(12, found.examples);
        assertArrayEquals(new float[] {1, 2}, found.weights.get("a").floats());
        assertArrayEquals(new float[] {3, 4}, found.optimizer.get("m:a").floats());
        assertNull(job.progress(task("u"), "data"));
        assertNull(job.progress(task("t"), "other data"));
        job.saveUpdate(WEIGHTS, new Report(4, 2, 0.5));
        assertFalse(file("progress.safetensors").exists());
    }

    @Test
    void weightsAreThoseOfTheirBundle() {
        job.saveWeights("b", new Kept(4, WEIGHTS, STATE));
        job.savePersonal("b", 3, WEIGHTS);
        assertEquals(4, job.weights("b").version);
        assertArrayEquals(new float[] {3, 4}, job.weights("b").optimizer.get("m:a").floats());
        assertEquals(3, job.personal("b").version);
        assertNull(job.weights("c"));
        assertNull(job.personal("c"));
    }

    @Test
    void aFileOfOtherBytesIsSetAside() throws Exception {
        job.saveWeights("b", new Kept(4, WEIGHTS));
        byte[] data = Files.readAllBytes(file("weights.safetensors").toPath());
        for (int length : new int[] {0, 10, data.length - 1}) {
            Files.write(file("weights.safetensors").toPath(), java.util.Arrays.copyOf(data, length));
            assertNull(job.weights("b"));
        }
        data[data.length - 1] ^= 1;
        Files.write(file("weights.safetensors").toPath(), data);
        assertNull(job.weights("b"));
        assertEquals(4, told.size());
        assertTrue(told.get(3).message.contains("its digest is wrong"));
    }

    @Test
    void oneClientAtATimeWhoFindsAFolderWithoutRemains() throws Exception {
        job.saveAbout(new Job(task("t")));
        for (String bundle : new String[] {"b", "unused"}) {
            store.bundle(bundle).mkdirs();
            Files.write(new File(store.bundle(bundle), Disk.TEMPORARY + "1").toPath(), new byte[1]);
        }
        try (Store.Lock locked = store.lock()) {
            String message = assertThrows(StoreException.class, store::lock).getMessage();
            assertTrue(message.contains("another client uses"), message);
            assertFalse(store.bundle("unused").exists());
            assertEquals(0, store.bundle("b").list().length);
        }
        store.lock().close();
    }

    @Test
    void theJobUsedLastComesFirst() throws Exception {
        for (String name : new String[] {"one", "two"}) {
            store.job(name).begin(task("t"));
        }
        assertTrue(new File(store.folder, "jobs/one").setLastModified(1));
        assertEquals(2, store.jobs().size());
        store.jobs().get(1).finish();
        assertNull(store.job("one").task());
    }

    @Test
    void aFolderThatCannotBeWrittenIsNamed() throws Exception {
        Files.write(new File(home, "file").toPath(), new byte[0]);
        Store blocked = new Store(new File(home, "file"), "https://x", told::add);
        assertTrue(assertThrows(StoreException.class, blocked::lock).getMessage().contains("cannot be made"));
    }
}
