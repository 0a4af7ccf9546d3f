package dev.spry.core.training;

import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.BadAnswerException;
import dev.spry.core.ServerException;
import dev.spry.core.Tensor;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Parameter;
import dev.spry.core.numbers.Safetensors;
import dev.spry.core.store.JobStore;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.Task;
import dev.spry.core.wire.Tensors;

/** A job's weights on a device: the version that a task starts from, and how to get there. */
public final class Versions {
    static final String SAME_VERSION = "server and device need the same version of spry";
    private static final int SLOT = 2;
    /** Of a parameter: itself, and its two moments. */
    private static final int COPIES = 3;
    /** Bytes of a tensor's line in a header; of all else in it. */
    private static final int HEADER = 256;
    private static final int SLACK = 1 << 20;

    private Versions() {
    }

    /** What is kept of the job; version 0 comes with the bundle. */
    public static Kept newest(JobStore store, Bundle bundle, Task task) throws IOException {
        Kept kept = store.weights(task.bundle);
        return kept == null || kept.version > task.version ? new Kept(0, bundle.initialAdapter()) : kept;
    }

    /** The version that a task of mode epoch starts from. */
    public static Kept current(Server server, JobStore store, Bundle bundle, Task task) throws IOException {
        Kept kept = newest(store, bundle, task);
        if (kept.version == task.version && (task.published == 0 || kept.published == task.published)) {
            return kept;
        }
        Tensors shown = server.mirroredWeights(task, largest(bundle.manifest));
        Kept found = shown == null
                ? downloaded(server, kept, bundle.manifest, task)
                : merged(kept, shown, bundle.manifest);
        if (found.version != task.version) {
            throw new ServerException("the weights are at version " + found.version + ", the task starts from "
                    + task.version + ": its round is over", "stale");
        }
        Kept known = new Kept(found.version, found.weights, found.optimizer, task.published);
        store.saveWeights(task.bundle, known);
        return known;
    }

    /**
     * What has changed since the version that is kept, or everything where the server does not know that one. A number
     * alone does not say that it is known: a server restored from a backup counts on from an earlier version.
     */
    public static Kept downloaded(Server server, Kept kept, Manifest manifest, Task task) {
        Tensors found;
        int most = largest(manifest);
        boolean told = kept.published > 0 && kept.version != task.version;
        boolean isOfThisLine = task.published == 0 || kept.version == 0 || told;
        try {
            found = server.weights(task.job, isOfThisLine ? kept.version : -1, kept.published, most);
        } catch (ServerException error) {
            if (!error.code.equals("stale")) {
                throw error;
            }
            found = server.weights(task.job, -1, 0, most);
        }
        return found == null ? kept : merged(kept, found, manifest);
    }

    /** Bytes of all that a server can send of a version: weights, their optimizer's state, and what names them. */
    static int largest(Manifest manifest) {
        long each = 0;
        for (Parameter parameter : manifest.parameters()) {
            each += 4L * parameter.size() + parameter.name.length() + HEADER;
        }
        return (int) Math.min(COPIES * each + SLACK, Integer.MAX_VALUE);
    }

    /** The newer version that tensors of the server lead to. */
    public static Kept merged(Kept kept, Tensors found, Manifest manifest) {
        Map<String, Tensor> weights = new LinkedHashMap<>(kept.weights);
        Map<String, Tensor> optimizer = new LinkedHashMap<>(kept.optimizer);
        Map<String, int[]> shapes = new HashMap<>();
        for (Parameter parameter : manifest.parameters()) {
            shapes.put(parameter.name, parameter.shape());
        }
        for (Map.Entry<String, Tensor> entry : parsed(found).entrySet()) {
            String name = entry.getKey();
            Tensor value = entry.getValue();
            boolean slot = name.startsWith("m:") || name.startsWith("v:");
            int[] shape = shapes.get(slot ? name.substring(SLOT) : name);
            if (!value.dtype().equals("float32") || !Arrays.equals(shape, value.shape())) {
                throw new BadAnswerException("the server sends " + name + " as " + value.dtype() + " "
                        + Arrays.toString(value.shape()) + ", which the bundle does not train; " + SAME_VERSION);
            }
            (slot ? optimizer : weights).put(name, value);
        }
        return new Kept(found.version, weights, optimizer);
    }

    private static Map<String, Tensor> parsed(Tensors found) {
        try {
            return Safetensors.parse(found.data).tensors;
        } catch (IllegalArgumentException error) {
            throw new BadAnswerException(
                    "the server's weights cannot be read (" + error.getMessage() + "); " + SAME_VERSION);
        }
    }
}
