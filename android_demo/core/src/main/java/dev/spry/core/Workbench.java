package dev.spry.core;

import java.io.Closeable;
import java.io.IOException;
import java.util.HashSet;
import java.util.Set;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.RuntimeSpec;
import dev.spry.core.data.Encoder;
import dev.spry.core.store.Tried;
import dev.spry.core.text.Tokenizer;
import dev.spry.core.training.Passes;
import dev.spry.core.training.Plan;
import dev.spry.core.wire.Task;

/** What training and prediction need at hand: a bundle, its tokenizer, and where its programs run. */
final class Workbench implements Closeable {
    final Bundle bundle;
    final Manifest manifest;
    final Tokenizer tokenizer;
    final ProgramRunner runner;
    private final String name;

    /**
     * `name` is the bundle's: its manifest's sha256. A runtime that gives wrong results for it is refused, as far as
     * `memory` lets it be tried; null: wholly.
     */
    Workbench(Bundle bundle, String name, Engine engine, Long memory) throws IOException {
        this.bundle = bundle;
        this.name = name;
        manifest = bundle.manifest;
        tokenizer = Tokenizer.read(bundle.tokenizer());
        runner = engine.open(bundle);
        boolean right = false;
        try {
            tryOnce(engine.version(), memory);
            right = true;
        } finally {
            if (!right) {
                close();
            }
        }
    }

    /** By the bundle's own trials: once for each version of the library that is known. */
    private void tryOnce(String version, Long memory) throws IOException {
        RuntimeSpec spec = manifest.runtime(runner.runtime());
        Tried tried = new Tried(bundle.folder);
        if (spec.trials.isEmpty() || !version.isEmpty() && tried.has(runner.runtime(), version)) {
            return;
        }
        if (Trials.check(runner, spec, memory) && !version.isEmpty()) {
            tried.add(runner.runtime(), version);
        }
    }

    boolean isFor(Task task) {
        return name.equals(task.bundle) && runner.runtime().equals(task.runtime);
    }

    Encoder encoder(int batch, int length) {
        return new Encoder(tokenizer, manifest, batch, length);
    }

    /** `keepPrefixes` pays where batches are visited again. */
    Passes passes(Plan plan, Task task, boolean keepPrefixes) {
        releaseBut(plan);
        return new Passes(plan, runner, task, keepPrefixes);
    }

    /** What another round's cut or shape needed would add up. */
    private void releaseBut(Plan plan) {
        Set<String> kept = new HashSet<>();
        for (ProgramSpec program : plan.programs) {
            kept.add(program.file + "\0" + program.method);
        }
        for (ProgramSpec program : manifest.runtime(runner.runtime()).programs) {
            if (!kept.contains(program.file + "\0" + program.method)) {
                runner.release(program);
            }
        }
    }

    @Override
    public void close() {
        try {
            runner.close();
        } catch (IOException error) {
            return; // it has ended already
        }
    }
}
