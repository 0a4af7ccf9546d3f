package dev.spry.core;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Signatures;
import dev.spry.core.store.Job;
import dev.spry.core.store.JobStore;
import dev.spry.core.store.Store;
import dev.spry.core.training.Kept;

/** What this device has of a job: its bundle, and the newest weights. */
final class Trained {
    final Job about;
    final Bundle bundle;
    final Map<String, Tensor> weights;

    /** `wanted` is a job's id or name; null: the last one. */
    Trained(Store store, String wanted, boolean personal) throws IOException {
        JobStore job = find(store, wanted);
        about = job.about();
        bundle = open(store, about);
        weights = weights(job, about, bundle, personal);
    }

    private static JobStore find(Store store, String wanted) {
        List<String> names = new ArrayList<>();
        for (JobStore job : store.jobs()) {
            Job about = job.about();
            if (about != null && (wanted == null || wanted.equals(about.id) || wanted.equals(about.name))) {
                return job;
            }
            if (about != null) {
                names.add(about.name);
            }
        }
        if (names.isEmpty()) {
            throw new StoreException(store.folder + " holds no job yet: take part in a round first");
        }
        String known = String.join(", ", names);
        throw new StoreException("this device took part in no job '" + wanted + "'; it knows " + known);
    }

    private static Bundle open(Store store, Job about) throws IOException {
        File folder = store.bundle(about.bundle);
        File manifest = new File(folder, Manifest.FILE_NAME);
        if (!manifest.isFile()) {
            throw new StoreException(
                    "the bundle of " + about.name + " is not there any more: take part in a round again");
        }
        String publisher = store.publisher();
        if (publisher != null) {
            Signatures.check(folder, publisher);
        }
        return new Bundle(folder, Manifest.read(manifest));
    }

    /** The newest global weights that this device has, or those that it trained last. */
    private static Map<String, Tensor> weights(JobStore job, Job about, Bundle bundle, boolean personal)
            throws IOException {
        Kept found = personal ? job.personal(about.bundle) : job.weights(about.bundle);
        if (found != null) {
            return found.weights;
        }
        if (personal) {
            throw new StoreException("there is no personal adapter of " + about.name
                    + ": it comes with the first round of mode epoch; until then use the global one");
        }
        return bundle.initialAdapter();
    }
}
