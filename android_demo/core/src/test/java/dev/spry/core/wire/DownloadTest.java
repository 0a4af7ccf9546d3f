package dev.spry.core.wire;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;

import org.json.JSONException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

import dev.spry.core.BadAnswerException;
import dev.spry.core.BundleException;
import dev.spry.core.ServerException;
import dev.spry.core.Signer;
import dev.spry.core.StoreException;
import dev.spry.core.Tell;
import dev.spry.core.TinyBundle;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Signatures;
import dev.spry.core.store.Disk;

@Timeout(60)
class DownloadTest {
    private static final String PROGRAM = "executorch/head.pte";
    @TempDir
    File folder;
    private Stage stage;
    private TinyBundle tiny;
    private byte[] manifest;
    private String name;
    /** Bytes after which the next answers with the program end; -1 for whole ones. */
    private final Deque<Integer> cuts = new ArrayDeque<>();
    private boolean ranges = true;
    private String publisher;

    @BeforeEach
    void open() throws Exception {
        tiny = new TinyBundle();
        publish(tiny.manifest());
        stage = new Stage();
        stage.otherwise(this::answer);
    }

    @AfterEach
    void close() throws IOException {
        stage.close();
    }

    private void publish(byte[] data) {
        manifest = data;
        name = Disk.hex(Disk.sha256().digest(data));
    }

    private void answer(Stage.Request request, Socket to) throws IOException {
        String path = request.path.split("/", 5)[4];
        byte[] data = path.equals(Manifest.FILE_NAME) ? manifest : tiny.files.get(path);
        String range = request.headers.get("range");
        int start = range == null ? 0 : Integer.parseInt(range.replaceAll("\\D", ""));
        if (data == null || start >= data.length) {
            Stage.send(to, data == null ? 404 : 416, new byte[0]);
            return;
        }
        boolean partial = range != null && ranges;
        byte[] rest = partial ? Arrays.copyOfRange(data, start, data.length) : data;
        int cut = path.equals(PROGRAM) && !cuts.isEmpty() ? cuts.remove() : rest.length;
        String[] headers = {"Content-Range", "bytes " + start + "-" + (data.length - 1) + "/" + data.length};
        Stage.head(to, partial ? 206 : 200, rest.length, partial ? headers : new String[0]);
        to.getOutputStream().write(rest, 0, cut);
        if (cut < rest.length) {
            to.close();
        }
    }

    private Bundle fetch() throws IOException {
        return fetch(Collections.emptyList());
    }

    private Bundle fetch(List<String> mirrors) throws IOException {
        try (Server server = stage.device().open()) {
            Download download = new Download(server, name, folder, stage.told::add).signedBy(publisher);
            return download.from(mirrors).fetch("executorch");
        }
    }

    /** What a static place answers when it is asked for a file of this content. */
    private interface Place {
        void answer(Stage.Request request, byte[] data, Socket to) throws IOException;
    }

    private void whole(Stage.Request request, byte[] data, Socket to) throws IOException {
        Stage.send(to, 200, data);
    }

    /** A static place; it must be told nothing of the device. */
    private Stage mirror(Place place) throws IOException {
        Stage stage = new Stage();
        stage.otherwise((request, to) -> {
            assertFalse(request.headers.containsKey("authorization"));
            String path = request.path.split("/", 3)[2];
            place.answer(request, path.equals(Manifest.FILE_NAME) ? manifest : tiny.files.get(path), to);
        });
        return stage;
    }

    @Test
    void aMirrorGivesAll() throws Exception {
        try (Stage place = mirror(this::whole)) {
            fetch(Arrays.asList(place.address()));
            assertEquals(Collections.emptyList(), stage.seen);
            Bundle.open(folder, "executorch");
        }
    }

    @Test
    void whatAMirrorDoesWrongCostsALine() throws Exception {
        List<Place> wrong = Arrays.asList(
                (request, data, to) -> Stage.send(to, 404, new byte[0]),
                (request, data, to) -> Stage.send(to, 302, new byte[0], "Location", "/again"),
                (request, data, to) -> Stage.send(to, 200, new byte[data.length]),
                (request, data, to) -> Stage.send(to, 200, Arrays.copyOf(data, data.length + 5)),
                (request, data, to) -> Stage.send(to, 200, Arrays.copyOf(data, data.length / 2)),
                (request, data, to) -> Stage.send(to, 206, data, "Content-Range", "bytes 7-9/10"),
                (request, data, to) -> to.close());
        for (Place fault : wrong) {
            for (boolean all : new boolean[] {true, false}) {
                Place place = (request, data, to) -> (all || data != manifest ? fault : (Place) this::whole)
                        .answer(request, data, to);
                File before = folder;
                folder = Files.createTempDirectory(before.toPath(), "bundle").toFile();
                stage.told.clear();
                try (Stage liar = mirror(place)) {
                    fetch(Arrays.asList(liar.address()));
                    Bundle.open(folder, "executorch");
                    String line = stage.told.get(0).message + stage.told.get(1).message;
                    assertTrue(line.contains("the mirror " + liar.address() + " is left out: "), line);
                }
                folder = before;
            }
        }
    }

    @Test
    void whatIsNoAddressOfAMirrorIsLeftOut() throws Exception {
        fetch(Arrays.asList("ftp://a", "https://a?b", "https://user@a", "https://a#b", ""));
        Bundle.open(folder, "executorch");
        assertTrue(stage.told.get(4).message.contains("is no address of a"), stage.told.get(4).message);
    }

    private List<String> paths() {
        List<String> found = new ArrayList<>();
        for (Stage.Request request : stage.seen) {
            found.add(request.path.split("/", 5)[4]);
        }
        return found;
    }

    @Test
    void nothingButTheManifestComesBeforeItsSignature() throws Exception {
        Signer owner = new Signer();
        publisher = owner.key;
        for (String signatures : new String[] {null, "", new Signer().line(manifest), owner.line(new byte[0])}) {
            if (signatures != null) {
                tiny.files.put(Signatures.FILE_NAME, signatures.getBytes(StandardCharsets.US_ASCII));
            }
            String told = assertThrows(BundleException.class, this::fetch).getMessage();
            String expected = "the bundle is not signed" + (signatures == null ? ", and" : " by the publisher " + owner.key);
            assertTrue(told.startsWith(expected), told);
            assertFalse(new File(folder, PROGRAM).exists());
        }
        assertEquals(new HashSet<>(Arrays.asList(Manifest.FILE_NAME, Signatures.FILE_NAME)), new HashSet<>(paths()));
        tiny.files.put(Signatures.FILE_NAME, "nonsense".getBytes(StandardCharsets.US_ASCII));
        assertTrue(assertThrows(BundleException.class, this::fetch).getMessage().contains("something else than"));
        tiny.files.put(Signatures.FILE_NAME, new byte[Signatures.LARGEST + 1]);
        assertThrows(BadAnswerException.class, this::fetch);
        String both = new Signer().line(manifest) + owner.line(manifest);
        tiny.files.put(Signatures.FILE_NAME, both.getBytes(StandardCharsets.US_ASCII)); // signed since
        fetch();
        assertTrue(new File(folder, PROGRAM).exists());
        int before = stage.seen.size();
        fetch();
        assertEquals(before, stage.seen.size());
    }

    @Test
    void onlyWhatTheRuntimeNeedsIsDownloadedOnce() throws Exception {
        Bundle bundle = fetch();
        assertArrayEquals(tiny.files.get(PROGRAM), Files.readAllBytes(new File(folder, PROGRAM).toPath()));
        assertFalse(new File(folder, "onnx").exists());
        assertEquals(3, bundle.initialAdapter().get("head.bias").size());
        Bundle.open(folder, "executorch");
        int before = stage.seen.size();
        fetch();
        assertEquals(before, stage.seen.size());
        assertEquals("the bundle is complete (0.1 MB)", stage.told.get(stage.told.size() - 1).message);
    }

    @Test
    void aDownloadGoesOnWhereItWasCut() throws Exception {
        cuts.addAll(Arrays.asList(20_000, 0, 10_000));
        fetch();
        assertArrayEquals(tiny.files.get(PROGRAM), Files.readAllBytes(new File(folder, PROGRAM).toPath()));
        assertEquals(Arrays.asList("null", "bytes=20000-", "bytes=20000-", "bytes=30000-"), ranges());
    }

    /** That were asked of the program. */
    private List<String> ranges() {
        List<String> asked = new ArrayList<>();
        for (Stage.Request request : stage.seen) {
            if (request.path.endsWith(PROGRAM)) {
                asked.add(String.valueOf(request.headers.get("range")));
            }
        }
        return asked;
    }

    @Test
    void aDownloadGoesOnAfterTheProcessEnded() throws Exception {
        cuts.add(20_000);
        try (Server server = stage.device().patience(0).open()) {
            Download download = new Download(server, name, folder, Tell.SILENT);
            assertThrows(ServerException.class, () -> download.fetch("executorch"));
        }
        assertEquals(20_000, new File(folder, PROGRAM + Download.PARTIAL).length());
        fetch();
        assertEquals(Arrays.asList("null", "bytes=20000-"), ranges());
        Bundle.open(folder, "executorch");
    }

    @Test
    void aServerWithoutRangesStartsAgain() throws Exception {
        ranges = false;
        cuts.add(20_000);
        fetch();
        Bundle.open(folder, "executorch");
    }

    @Test
    void aDamagedBeginningIsDownloadedAgainOnce() throws Exception {
        File partial = new File(folder, PROGRAM + Download.PARTIAL);
        partial.getParentFile().mkdirs();
        Files.write(partial.toPath(), new byte[30_000]);
        fetch();
        Bundle.open(folder, "executorch");
        assertEquals(2, paths().stream().filter(PROGRAM::equals).count());
    }

    @Test
    void aFileWithAnotherHashIsRefused() throws Exception {
        tiny.files.get(PROGRAM)[7]++;
        String message = assertThrows(BundleException.class, this::fetch).getMessage();
        assertTrue(message.contains("gives a damaged " + PROGRAM), message);
        assertEquals(2, paths().stream().filter(PROGRAM::equals).count());
        assertFalse(new File(folder, PROGRAM).exists());
    }

    @Test
    void aTruncatedFileIsNotTakenForAWholeOne() throws Exception {
        tiny.files.put(PROGRAM, Arrays.copyOf(tiny.files.get(PROGRAM), 40_000));
        try (Server server = stage.device().patience(2).open()) {
            Download download = new Download(server, name, folder, Tell.SILENT);
            assertThrows(ServerException.class, () -> download.fetch("executorch"));
        }
        assertFalse(new File(folder, PROGRAM).exists());
    }

    @Test
    void aFileLongerThanItsManifestSaysIsCut() throws Exception {
        tiny.files.put(PROGRAM, Arrays.copyOf(tiny.files.get(PROGRAM), 60_000));
        assertTrue(assertThrows(BadAnswerException.class, this::fetch).getMessage().contains("longer than the manifest"));
    }

    @Test
    void anotherManifestIsRefused() throws Exception {
        manifest = tiny.manifest(PROGRAM, "bytes", 1);
        assertTrue(assertThrows(BadAnswerException.class, this::fetch).getMessage().contains("another manifest"));
        assertFalse(new File(folder, Manifest.FILE_NAME).exists());
    }

    @Test
    void aBundleForOtherRuntimesIsNamed() throws Exception {
        try (Server server = stage.device().open()) {
            Download download = new Download(server, name, folder, Tell.SILENT);
            String message = assertThrows(BundleException.class, () -> download.fetch("torchscript")).getMessage();
            assertTrue(message.contains("no programs for torchscript; it has"), message);
        }
    }

    @Test
    void pathsOutsideTheBundleAreRefused() throws JSONException {
        for (String path : new String[] {"../evil", "/etc/evil", "a/../../evil", "a\\evil", "C:evil", "a//b", ""}) {
            String message = assertThrows(BundleException.class, () -> Bundle.file(folder, path)).getMessage();
            assertTrue(message.contains("does not lie inside the bundle"), message);
        }
        publish(tiny.manifest(PROGRAM, "path", "../evil"));
        assertThrows(BundleException.class, this::fetch);
        assertFalse(new File(folder.getParentFile(), "evil").exists());
    }

    // --- a full disk ---

    @Test
    void aBundleLargerThanTheDiskIsNotBegun() throws Exception {
        publish(tiny.manifest("adapter/adapter_model.safetensors", "bytes", 1L << 60));
        String message = assertThrows(StoreException.class, this::fetch).getMessage();
        assertTrue(message.contains("is full: 1152921504606.") && message.contains("make room"), message);
        assertFalse(new File(folder, PROGRAM).exists());
    }

    @Test
    void aDiskThatIsFullAllTheSameIsNamed() throws Exception {
        IOException full = assertThrows(IOException.class, () -> {
            try (FileOutputStream device = new FileOutputStream("/dev/full")) {
                device.write(1);
            }
        });
        assertTrue(Disk.problem(full, folder, 5_000_000).getMessage().contains("is full: 5.0 MB are needed"));
    }
}
