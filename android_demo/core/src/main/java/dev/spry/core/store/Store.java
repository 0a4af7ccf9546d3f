package dev.spry.core.store;

import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.SpryException;
import dev.spry.core.StoreException;
import dev.spry.core.Tell;
import dev.spry.core.bundle.Keys;
import dev.spry.core.wire.Enrolled;
import dev.spry.core.wire.Json;
import dev.spry.core.wire.Task;

/**
 * What a device keeps for one server, so that no crash or reboot costs it more than a few steps.
 *
 * <pre>
 * HOME/SERVER/identity.json                 the device's id, for its user's eyes only
 *             device.key                    the key that it signs requests with, never sent
 *             publisher.key                 whose bundles alone are taken, where that is pinned
 *             refused.json                  bundles for which this device's runtime gave wrong results
 *             bundles/SHA256/               a bundle's files, and what is there of those being downloaded;
 *                                           which runtimes gave right results (`Tried`)
 *             jobs/JOB/job.json             which bundle and runtime the job uses
 *                      task.json            the task under way
 *                      progress.safetensors where its training stands
 *                      update.safetensors   its finished result, until the server has it
 *                      weights.safetensors  the newest global weights with their version
 *                      personal.safetensors the adapter that this device trained last
 * </pre>
 *
 * A file is written beside its place and moved there when it is on disk. One that cannot be read all the same is set
 * aside. The files are those of the Python client.
 */
public final class Store {
    private static final String PUBLISHER = "publisher.key";
    private static final String KEY = "device.key";
    private static final String SECRET = "secret:";

    public final File folder;
    private final Tell tell;

    public Store(File home, String server, Tell tell) {
        folder = new File(home, Names.ofServer(server));
        this.tell = tell;
    }

    /** Keeps other clients out; the system lifts it when this process ends, however it ends. */
    public static final class Lock implements Closeable {
        private final FileChannel file;

        private Lock(FileChannel file) {
            this.file = file;
        }

        @Override
        public void close() {
            try {
                file.close();
            } catch (IOException error) {
                throw new StoreException("the lock cannot be given back (" + error.getMessage() + ")");
            }
        }
    }

    public Lock lock() {
        Disk.makeFolder(folder);
        FileChannel file = null;
        try {
            File path = new File(folder, "lock");
            file = FileChannel.open(path.toPath(), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
            FileLock found = file.tryLock();
            if (found != null) {
                clean(folder);
                removeUnused();
                return new Lock(file);
            }
            file.close();
        } catch (IOException error) {
            throw Disk.problem(error, folder, 0);
        } catch (OverlappingFileLockException error) {
            new Lock(file).close();
        }
        throw new StoreException("another client uses " + folder + "; stop it, or give this one a folder of its own");
    }

    /** Remove what a crash left half written. */
    private static void clean(File folder) {
        File[] inside = folder.listFiles();
        for (File one : inside == null ? new File[0] : inside) {
            if (one.isDirectory()) {
                clean(one);
            } else if (one.getName().startsWith(Disk.TEMPORARY)) {
                one.delete();
            }
        }
    }

    /** Bundles that no job uses any more. */
    private void removeUnused() {
        Set<String> used = new HashSet<>();
        for (JobStore job : jobs()) {
            Job about = job.about();
            Task task = job.task();
            if (about != null) {
                used.add(Names.safe(about.bundle));
            }
            if (task != null) {
                used.add(Names.safe(task.bundle));
            }
        }
        File[] bundles = new File(folder, "bundles").listFiles();
        for (File bundle : bundles == null ? new File[0] : bundles) {
            if (!used.contains(bundle.getName())) {
                Disk.removeTree(bundle);
            }
        }
    }

    // --- who this device is ---

    /** null before it is enrolled. */
    public Enrolled identity() {
        return read(new File(folder, "identity.json"), Enrolled::new, tell);
    }

    public void saveIdentity(Enrolled identity) {
        write(new File(folder, "identity.json"), identity::toJson);
    }

    /** The key that this device signs with; one that cannot be read is an error, as the server knows no other. */
    public String key() {
        File file = new File(folder, KEY);
        try {
            String text = new String(Files.readAllBytes(file.toPath()), StandardCharsets.UTF_8).trim();
            return Keys.secret(text.startsWith(SECRET) ? text.substring(SECRET.length()) : "");
        } catch (IOException | SpryException error) {
            throw new StoreException(file + " cannot be read (" + error.getMessage()
                    + "), and it is what the server knows this device by: enrol again");
        }
    }

    /** The same, made at the first call: a repeated enrolment must not bring another. */
    public String makeKey() {
        File file = new File(folder, KEY);
        if (!file.exists()) {
            Disk.write(file, (SECRET + Keys.make() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        return key();
    }

    /** The key that bundles must be signed with; null where none is pinned. One that cannot be read is an error. */
    public String publisher() {
        File file = new File(folder, PUBLISHER);
        if (!file.exists()) {
            return null;
        }
        try {
            return Keys.publicKey(new String(Files.readAllBytes(file.toPath()), StandardCharsets.UTF_8));
        } catch (IOException | SpryException error) {
            throw new StoreException(file + " holds no public key (" + error.getMessage()
                    + "): write the publisher's into it, which `spry keys show` prints");
        }
    }

    public void pin(String publisher) {
        Disk.write(new File(folder, PUBLISHER), (publisher + "\n").getBytes(StandardCharsets.UTF_8));
    }

    // --- bundles and jobs ---

    public File bundle(String sha256) {
        return new File(new File(folder, "bundles"), Names.safe(sha256));
    }

    public JobStore job(String job) {
        return new JobStore(new File(new File(folder, "jobs"), Names.safe(job)), tell);
    }

    /** Those that the device knows, the one used last first. */
    public List<JobStore> jobs() {
        File[] folders = new File(folder, "jobs").listFiles(File::isDirectory);
        List<JobStore> found = new ArrayList<>();
        if (folders != null) {
            Arrays.sort(folders, (one, other) -> Long.compare(other.lastModified(), one.lastModified()));
            for (File one : folders) {
                found.add(new JobStore(one, tell));
            }
        }
        return found;
    }

    // --- JSON ---

    interface Reading<T> {
        T from(JSONObject json) throws JSONException;
    }

    interface Writing {
        JSONObject json() throws JSONException;
    }

    static <T> T read(File path, Reading<T> reading, Tell tell) {
        byte[] data = Disk.read(path);
        if (data == null) {
            return null;
        }
        try {
            return reading.from(Json.parse(data));
        } catch (JSONException error) {
            Disk.setAside(path, error.getMessage(), tell);
            return null;
        }
    }

    static void write(File path, Writing writing) {
        try {
            Disk.write(path, Json.bytes(writing.json()));
        } catch (JSONException error) {
            throw new IllegalStateException(error);
        }
    }
}
