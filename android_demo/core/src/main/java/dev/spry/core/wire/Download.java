package dev.spry.core.wire;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import dev.spry.core.BadAnswerException;
import dev.spry.core.BundleException;
import dev.spry.core.Event;
import dev.spry.core.ServerException;
import dev.spry.core.Tell;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.FileSpec;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Signatures;
import dev.spry.core.store.Disk;

/**
 * A bundle's files, from mirrors or the server: only those that a runtime needs, resumed where they were cut, checked
 * before use.
 */
public final class Download {
    static final String PARTIAL = ".partial";
    private static final Pattern RANGE = Pattern.compile("bytes (\\d{1,18})-.*");
    private static final String TELL = "tell its operator: the file or a proxy in between is broken";

    private final Server server;
    private final String bundle;
    private final File folder;
    private final Tell tell;
    private String publisher;
    private Mirrors mirrors;

    /** Of a bundle, named by its manifest's sha256, into a folder. */
    public Download(Server server, String bundle, File folder, Tell tell) {
        this.server = server;
        this.bundle = bundle;
        this.folder = folder;
        this.tell = tell;
        mirrors = new Mirrors(Collections.emptyList(), tell);
    }

    /** Take it with this publisher's signature alone, and nothing but the manifest before that was found right. */
    public Download signedBy(String key) {
        publisher = key;
        return this;
    }

    /** Ask these mirrors first; what none gives as it should be comes from the server, as signatures do. */
    public Download from(List<String> addresses) {
        mirrors = new Mirrors(addresses, tell);
        return this;
    }

    /** The bundle with the programs of one runtime; what is there already is not downloaded again. */
    public Bundle fetch(String runtime) throws IOException {
        Manifest manifest = manifest();
        if (publisher != null) {
            checkPublisher();
        }
        List<FileSpec> missing = new ArrayList<>();
        for (FileSpec file : Bundle.files(manifest, runtime)) {
            if (!isThere(file)) {
                missing.add(file);
            }
        }
        if (!missing.isEmpty()) {
            download(missing);
        }
        return new Bundle(folder, manifest);
    }

    /** The manifest, whose own hash is the bundle's name: it vouches for every other file. */
    private Manifest manifest() throws IOException {
        File path = new File(folder, Manifest.FILE_NAME);
        if (path.isFile() && Disk.digest(path).equals(bundle)) {
            return Manifest.read(path);
        }
        byte[] data = mirrors.whole(server, bundle, Manifest.FILE_NAME, bundle, Manifest.LARGEST);
        if (data == null) {
            data = server.repeat(() -> {
                try (Reply reply = server.file(bundle, Manifest.FILE_NAME, 0)) {
                    return reply.all(Manifest.LARGEST);
                }
            });
            checkManifest(data);
        }
        Manifest manifest = Manifest.parse(data, server.url + ": " + Manifest.FILE_NAME);
        Disk.write(path, data);
        return manifest;
    }

    private void checkManifest(byte[] data) {
        if (!Disk.hex(Disk.sha256().digest(data)).equals(bundle)) {
            String name = bundle.substring(0, Math.min(12, bundle.length()));
            throw new BadAnswerException(
                    server.url + " gives another manifest than that of the bundle " + name + "…; " + TELL);
        }
    }

    /** A signature that does not fit is asked for again: a bundle may be signed after it was downloaded. */
    private void checkPublisher() throws IOException {
        try {
            Signatures.check(folder, publisher);
        } catch (BundleException error) {
            byte[] signatures = signatures();
            byte[] manifest = Files.readAllBytes(new File(folder, Manifest.FILE_NAME).toPath());
            Signatures.check(manifest, signatures, publisher);
            Disk.write(new File(folder, Signatures.FILE_NAME), signatures);
        }
    }

    /** null where the server has none. */
    private byte[] signatures() {
        try {
            return server.repeat(() -> {
                try (Reply reply = server.file(bundle, Signatures.FILE_NAME, 0)) {
                    return reply.all(Signatures.LARGEST);
                }
            });
        } catch (ServerException error) {
            if (error.status == 404) {
                return null;
            }
            throw error;
        }
    }

    /** A file gets its name only after its hash was found right, so its size suffices. */
    private boolean isThere(FileSpec file) {
        File path = Bundle.file(folder, file.path);
        return path.isFile() && path.length() == file.bytes;
    }

    private void download(List<FileSpec> files) {
        long done = 0;
        long total = 0;
        for (FileSpec file : files) {
            done += partial(file).length();
            total += file.bytes;
        }
        if (folder.getUsableSpace() < total - done) {
            throw Disk.full(folder, total - done);
        }
        for (FileSpec file : files) {
            String message = String.format(
                    Locale.ROOT, "downloading the bundle: %.1f of %.1f MB", done / 1e6, total / 1e6);
            tell.tell(Event.of("download", message).with("bytes", done).with("total", total).with("file", file.path));
            done += file.bytes - partial(file).length();
            download(file);
        }
        String message = String.format(Locale.ROOT, "the bundle is complete (%.1f MB)", total / 1e6);
        tell.tell(Event.of("download", message).with("bytes", total).with("total", total));
    }

    private void download(FileSpec file) {
        File target = Bundle.file(folder, file.path);
        File partial = partial(file);
        Disk.makeFolder(target.getParentFile());
        if (partial.isFile() && partial.length() >= file.bytes && !Disk.digest(partial).equals(file.sha256)) {
            partial.delete(); // what was left of a damaged download is no fault of who is asked next
        }
        if (!takeFromMirrors(file, partial)) {
            takeFromServer(file, partial);
        }
        if (!partial.renameTo(target)) {
            throw Disk.problem(new IOException(partial + " cannot be renamed"), folder, 0);
        }
    }

    /** Whether a mirror gave the file as it should be; what came before it failed is kept, unless it is wrong. */
    private boolean takeFromMirrors(FileSpec file, File partial) {
        for (String address = mirrors.next(); address != null; address = mirrors.next()) {
            try {
                if (partial.length() < file.bytes || !partial.isFile()) {
                    try (Reply reply = server.mirrored(address, bundle, file.path, partial.length())) {
                        receive(reply, file, partial);
                    }
                }
            } catch (IOException | ServerException error) {
                mirrors.leaveOut(address, String.valueOf(error.getMessage()));
                continue;
            }
            if (Disk.digest(partial).equals(file.sha256)) {
                return true;
            }
            partial.delete();
            mirrors.leaveOut(address, "it gives a damaged " + file.path);
        }
        return false;
    }

    private void takeFromServer(FileSpec file, File partial) {
        for (int attempt = 0; attempt < 2; attempt++) {
            if (partial.length() < file.bytes || !partial.isFile()) {
                server.repeat(() -> {
                    try (Reply reply = server.file(bundle, file.path, Math.min(partial.length(), file.bytes))) {
                        receive(reply, file, partial);
                    }
                    return null;
                });
            }
            if (Disk.digest(partial).equals(file.sha256)) {
                return;
            }
            partial.delete(); // its beginning may be of a damaged download: once more from the start
        }
        throw new BundleException(
                server.url + " gives a damaged " + file.path + "; tell its operator to export the bundle again");
    }

    /** Append what is missing; whatever arrives is kept, whenever the connection ends. */
    private void receive(Reply reply, FileSpec file, File partial) throws IOException {
        long start = Math.min(partial.length(), file.bytes);
        if (reply.status == 416) {
            partial.delete();
            throw new IOException("the file cannot be resumed; starting again");
        }
        start = append(reply, startsAt(reply, start) ? start : 0, file, partial);
        if (start < file.bytes) {
            throw new IOException(file.path + " ended after " + start + " of " + file.bytes + " bytes");
        }
    }

    private long append(Reply reply, long start, FileSpec file, File partial) throws IOException {
        long size = start;
        byte[] buffer = new byte[1 << 16];
        try (FileOutputStream target = opened(partial, start)) {
            for (int count = reply.read(buffer); count >= 0; count = reply.read(buffer)) {
                size += count;
                if (size > file.bytes) {
                    throw new BadAnswerException(reply.url + " is longer than the manifest says; " + TELL);
                }
                write(target, buffer, count, file.bytes - size);
            }
            target.getFD().sync(); // its name says that it is whole
        }
        return size;
    }

    private FileOutputStream opened(File partial, long start) {
        try {
            FileOutputStream target = new FileOutputStream(partial, true);
            target.getChannel().truncate(start);
            return target;
        } catch (IOException error) {
            throw Disk.problem(error, folder, 0);
        }
    }

    /** A disk that takes nothing more is no fault of the server's. */
    private void write(FileOutputStream target, byte[] buffer, int count, long left) {
        try {
            target.write(buffer, 0, count);
        } catch (IOException error) {
            throw Disk.problem(error, folder, left + count);
        }
    }

    /** Whether an answer holds the rest; a server may send the whole file instead. */
    private static boolean startsAt(Reply reply, long start) {
        if (reply.status != 206) {
            return start == 0;
        }
        Matcher found = RANGE.matcher(reply.header("Content-Range"));
        if (!found.matches() || Long.parseLong(found.group(1)) != start) {
            throw new BadAnswerException(reply.url + " answers with another range than was asked for; " + TELL);
        }
        return true;
    }

    private File partial(FileSpec file) {
        File path = Bundle.file(folder, file.path);
        return new File(path.getParentFile(), path.getName() + PARTIAL);
    }
}
