package dev.spry.core.store;

import java.io.File;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.Tell;
import dev.spry.core.Tensor;
import dev.spry.core.numbers.Safetensors;
import dev.spry.core.sums.Secrets;
import dev.spry.core.training.Kept;
import dev.spry.core.wire.Report;
import dev.spry.core.wire.Task;

/** The folder of one job. */
public final class JobStore {
    private static final String MARK = "mark";
    private static final String WEIGHT = "w/";
    private static final String OPTIMIZER = "o/";
    private static final int DIGEST = 32;
    /** Where an update's safetensors header keeps its report. */
    public static final String REPORT = "report";

    private final File folder;
    private final Tell tell;

    JobStore(File folder, Tell tell) {
        this.folder = folder;
        this.tell = tell;
    }

    /** null before the device took part in it. */
    public Job about() {
        return Store.read(path("job.json"), Job::new, tell);
    }

    public void saveAbout(Job job) {
        writeChanged(path("job.json"), job::toJson);
    }

    // --- the task under way ---

    /** null where there is none. */
    public Task task() {
        return Store.read(path("task.json"), Task::new, tell);
    }

    /**
     * Take up a task, and give it as it is done; what was left of another one is dropped.
     *
     * <p>An update that goes into a sum is made by a seed that the device draws: of a server that gives a version and a
     * seed twice, the difference of two sums would tell what one device added.
     */
    public Task begin(Task given) {
        Task known = task();
        boolean again = known != null && known.id.equals(given.id) && (known.sum == null) == (given.sum == null);
        if (!again) {
            finish();
        }
        Task task = given.sum == null ? given
                : withSeed(given, again ? known.seed : new SecureRandom().nextLong() & Long.MAX_VALUE);
        writeChanged(path("task.json"), task::toJson);
        return task;
    }

    private static Task withSeed(Task task, long seed) {
        try {
            return new Task(task.toJson().put("seed", seed));
        } catch (JSONException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Forget the task, then its result, which without its task is not sent. */
    public void finish() {
        for (String name : new String[] {"task.json", "progress.safetensors", "update.safetensors", "sum.json"}) {
            path(name).delete();
        }
    }

    public void saveProgress(Task task, String data, Progress progress) {
        save("progress", mark(task.bundle, task.version, json -> json
                .put("task", task.id)
                .put("data", data)
                .put("step", progress.step)
                .put("loss", progress.loss)
                .put("examples", progress.examples)
                .put("seconds", progress.seconds)), progress.weights, progress.optimizer);
    }

    /** Where this task stood, trained on the same data; null where that is not known. */
    public Progress progress(Task task, String data) {
        Loaded found = load("progress");
        if (found == null || !found.mark.optString("task").equals(task.id) || !found.mark.optString("data").equals(data)
                || !found.is(task.bundle) || found.version() != task.version) {
            return null;
        }
        JSONObject mark = found.mark;
        return new Progress(mark.optInt("step"), mark.optDouble("loss"), mark.optInt("examples"),
                mark.optDouble("seconds"), found.part(WEIGHT), found.part(OPTIMIZER));
    }

    /** Once it is on disk, training need not be repeated. */
    public void saveUpdate(Map<String, Tensor> tensors, Report report) {
        try {
            Map<String, String> told = Collections.singletonMap(REPORT, report.toJson().toString());
            Disk.write(path("update.safetensors"), new Safetensors(tensors, told).encoded());
        } catch (JSONException error) {
            throw new IllegalArgumentException("a report holds what JSON cannot: " + error.getMessage(), error);
        }
        path("progress.safetensors").delete();
    }

    /** The finished result of the task under way, as it is sent; null where there is none. */
    public byte[] update() {
        return task() == null ? null : Disk.read(path("update.safetensors"));
    }

    // --- a sum that the result is added to ---

    /** What was drawn for it and told of it; secret until the task is forgotten. */
    public void saveSum(Secrets kept) {
        Store.write(path("sum.json"), kept::toJson);
    }

    /** null where nothing was said yet. */
    public Secrets sum() {
        return Store.read(path("sum.json"), Secrets::new, tell);
    }

    // --- weights ---

    public void saveWeights(String bundle, Kept kept) {
        JSONObject mark = mark(bundle, kept.version, json -> json.put("published", kept.published));
        save("weights", mark, kept.weights, kept.optimizer);
    }

    /** The newest global weights; null where there are none of this bundle. */
    public Kept weights(String bundle) {
        return kept("weights", bundle);
    }

    public void savePersonal(String bundle, int version, Map<String, Tensor> weights) {
        save("personal", mark(bundle, version, json -> json), weights, Collections.<String, Tensor>emptyMap());
    }

    /** What this device trained last; null where there is nothing of this bundle. */
    public Kept personal(String bundle) {
        return kept("personal", bundle);
    }

    private Kept kept(String name, String bundle) {
        Loaded found = load(name);
        return found == null || !found.is(bundle)
                ? null : new Kept(found.version(), found.part(WEIGHT), found.part(OPTIMIZER),
                        found.mark.optDouble("published", 0));
    }

    // --- files ---

    private interface More {
        JSONObject to(JSONObject mark) throws JSONException;
    }

    private static JSONObject mark(String bundle, int version, More more) {
        try {
            return more.to(new JSONObject().put("bundle", bundle).put("version", version));
        } catch (JSONException error) {
            throw new IllegalArgumentException("a mark holds what JSON cannot: " + error.getMessage(), error);
        }
    }

    private void save(String name, JSONObject mark, Map<String, Tensor> weights, Map<String, Tensor> optimizer) {
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (Map.Entry<String, Tensor> entry : weights.entrySet()) {
            tensors.put(WEIGHT + entry.getKey(), entry.getValue());
        }
        for (Map.Entry<String, Tensor> entry : optimizer.entrySet()) {
            tensors.put(OPTIMIZER + entry.getKey(), entry.getValue());
        }
        byte[] data = new Safetensors(tensors, Collections.singletonMap(MARK, mark.toString())).encoded();
        // safetensors tells a file that is too short from a whole one, not one with other bytes
        Disk.write(path(name + ".safetensors"), Disk.sha256().digest(data), data);
    }

    /** A file of tensors, and what it says about itself. */
    private static final class Loaded {
        final JSONObject mark;
        private final Map<String, Tensor> tensors;

        Loaded(Safetensors found) throws JSONException {
            tensors = found.tensors;
            mark = new JSONObject(String.valueOf(found.metadata.get(MARK)));
        }

        boolean is(String bundle) {
            return mark.optString("bundle").equals(bundle);
        }

        int version() {
            return mark.optInt("version");
        }

        Map<String, Tensor> part(String prefix) {
            Map<String, Tensor> found = new LinkedHashMap<>();
            for (Map.Entry<String, Tensor> entry : tensors.entrySet()) {
                if (entry.getKey().startsWith(prefix)) {
                    found.put(entry.getKey().substring(prefix.length()), entry.getValue());
                }
            }
            return found;
        }
    }

    private Loaded load(String name) {
        File path = path(name + ".safetensors");
        byte[] content = Disk.read(path);
        if (content == null) {
            return null;
        }
        try {
            byte[] data = Arrays.copyOfRange(content, Math.min(DIGEST, content.length), content.length);
            byte[] digest = Arrays.copyOf(content, DIGEST);
            if (!MessageDigest.isEqual(digest, Disk.sha256().digest(data))) {
                throw new IllegalArgumentException("its digest is wrong");
            }
            return new Loaded(Safetensors.parse(data));
        } catch (IllegalArgumentException | JSONException error) {
            Disk.setAside(path, error.getMessage(), tell);
            return null;
        }
    }

    private void writeChanged(File path, Store.Writing writing) {
        try {
            if (!writing.json().toString().equals(Disk.readText(path))) {
                Store.write(path, writing);
            }
        } catch (JSONException error) {
            throw new IllegalStateException(error);
        }
    }

    private File path(String name) {
        return new File(folder, name);
    }
}
