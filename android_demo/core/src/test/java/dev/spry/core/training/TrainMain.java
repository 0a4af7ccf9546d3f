package dev.spry.core.training;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONObject;

import dev.spry.core.ProgramRunner;
import dev.spry.core.Tensor;
import dev.spry.core.WorkerRunner;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.data.Encoder;
import dev.spry.core.data.Examples;
import dev.spry.core.data.JsonlSource;
import dev.spry.core.numbers.Safetensors;
import dev.spry.core.text.Tokenizer;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Scalars;
import dev.spry.core.wire.StepRecord;
import dev.spry.core.wire.Task;

/**
 * Trains tasks as a client would, without a server: `TrainMain BUNDLE FOLDER`.
 *
 * <p>FOLDER holds rows.jsonl, start.safetensors and cases.json, a list of {"name", "task", "memory"}. Of each case in
 * mode epoch it gets NAME.safetensors, the update with its report. In mode iteration NAME.records holds what the server
 * published; it gets NAME.I.report for each iteration, and NAME.safetensors with the weights in the end.
 */
final class TrainMain {
    private final Bundle bundle;
    private final Tokenizer tokenizer;
    private final Examples examples;
    private final ProgramRunner runner;
    private final File folder;
    private final Map<String, Tensor> start;

    private TrainMain(Bundle bundle, ProgramRunner runner, File folder) throws Exception {
        this.bundle = bundle;
        this.runner = runner;
        this.folder = folder;
        tokenizer = Tokenizer.read(bundle.tokenizer());
        JsonlSource source = new JsonlSource(new File(folder, "rows.jsonl"));
        examples = Examples.of(source, bundle, false);
        start = Safetensors.parse(read("start.safetensors")).tensors;
    }

    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[1]);
        String text = new String(Files.readAllBytes(new File(folder, "cases.json").toPath()), StandardCharsets.UTF_8);
        JSONArray cases = new JSONArray(text);
        String runtime = new Task(cases.getJSONObject(0).getJSONObject("task")).runtime;
        Bundle bundle = Bundle.open(new File(arguments[0]), runtime);
        try (ProgramRunner runner = new WorkerRunner(bundle.folder, runtime)) {
            TrainMain main = new TrainMain(bundle, runner, folder);
            for (int i = 0; i < cases.length(); i++) {
                main.train(cases.getJSONObject(i));
            }
        }
    }

    private void train(JSONObject given) throws Exception {
        String name = given.getString("name");
        Task task = new Task(given.getJSONObject("task"));
        Plan plan = new Plan(bundle.manifest, task, given.optLong("memory", Plan.NO_LIMIT), false);
        Passes passes = new Passes(plan, runner, task, true);
        Estimator estimator = Estimator.of(bundle.manifest, task, passes);
        Encoder encoder = new Encoder(tokenizer, bundle.manifest, task.training.batch, task.training.length);
        Batches batches = new Batches(PackedRows.taken(examples, encoder, task.training), task.seed);
        if (task.training.mode.equals("iteration")) {
            iterate(name, task, passes, (ScalarEstimator) estimator, batches);
        } else {
            round(name, task, passes, estimator, batches, encoder);
        }
        passes.release();
    }

    private void round(String name, Task task, Passes passes, Estimator estimator, Batches batches, Encoder encoder)
            throws Exception {
        Training training = new Training(task, bundle.manifest, estimator, batches);
        State state = new State(start);
        while (state.step < training.steps()) {
            state = training.next(state);
        }
        LocalRows rows = new LocalRows(examples, encoder);
        Evaluation held = Evaluation.of(passes, rows, bundle.manifest.model.task, start, state.weights);
        Moments moments = Moments.of(passes, rows, bundle.manifest.model.task, start, task.seed);
        String report = Training.report(state, 0, held, moments).toJson().toString();
        Map<String, Tensor> update = new LinkedHashMap<>(training.update(state));
        update.putAll(moments.tensors);
        write(name + ".safetensors",
                new Safetensors(update, Collections.singletonMap("report", report)).encoded());
    }

    private void iterate(String name, Task task, Passes passes, ScalarEstimator estimator, Batches batches)
            throws Exception {
        Kept kept = new Kept(0, start);
        for (StepRecord record : Scalars.decode(read(name + ".records"))) {
            ScalarReport report = estimator.report(batches.at(record.iteration), kept.weights, record.iteration);
            write(name + "." + record.iteration + ".report", Scalars.encode(report));
            Replay replay = new Replay(record, kept, bundle.manifest, task.training, task.optimizers);
            kept = replay.kept;
            passes.changed(replay.moved);
        }
        Map<String, Tensor> all = new LinkedHashMap<>(kept.weights);
        all.putAll(kept.optimizer);
        write(name + ".safetensors", new Safetensors(all, Collections.<String, String>emptyMap()).encoded());
    }

    private byte[] read(String name) throws Exception {
        return Files.readAllBytes(new File(folder, name).toPath());
    }

    private void write(String name, byte[] data) throws Exception {
        Files.write(new File(folder, name).toPath(), data);
    }
}
