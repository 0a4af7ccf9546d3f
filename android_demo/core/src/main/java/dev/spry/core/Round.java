package dev.spry.core;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

import dev.spry.core.data.Encoder;
import dev.spry.core.data.Examples;
import dev.spry.core.store.JobStore;
import dev.spry.core.store.Progress;
import dev.spry.core.sums.Changes;
import dev.spry.core.training.Batches;
import dev.spry.core.training.Clipping;
import dev.spry.core.training.Estimator;
import dev.spry.core.training.Evaluation;
import dev.spry.core.training.Iterations;
import dev.spry.core.training.LocalRows;
import dev.spry.core.training.Moments;
import dev.spry.core.training.PackedRows;
import dev.spry.core.training.Passes;
import dev.spry.core.training.Plan;
import dev.spry.core.training.State;
import dev.spry.core.training.Training;
import dev.spry.core.training.Versions;
import dev.spry.core.wire.Report;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.Task;
import dev.spry.core.wire.TrainingSettings;

/**
 * A device's part in one round, from the weights it starts with to a result that can be sent. Where the round stands is
 * kept, so that it can be left at any point and taken up again.
 */
final class Round {
    /** Between two savings of a training's progress: what a crash can cost, and how much flash is worn. */
    private static final double CHECKPOINT_SECONDS = 30;

    private final Task task;
    private final Server server;
    private final JobStore store;
    private final Workbench bench;
    private final Tell tell;
    private final Runnable checkStopped;

    /** `checkStopped` throws where the client was told to stop. */
    Round(Task task, Server server, JobStore store, Workbench bench, Tell tell, Runnable checkStopped) {
        this.task = task;
        this.server = server;
        this.store = store;
        this.bench = bench;
        this.tell = tell;
        this.checkStopped = checkStopped;
    }

    /**
     * Train until there is a result to send (mode epoch), or until the round is over (mode iteration).
     *
     * @param conditions how much memory training may take
     * @return the seconds that a step took; null if the round was over before the first
     */
    Double run(Examples examples, Examples heldBack, Conditions conditions) throws IOException {
        TrainingSettings settings = task.training;
        Encoder encoder = bench.encoder(settings.batch, settings.length);
        Batches batches = new Batches(PackedRows.taken(examples, encoder, settings), task.seed);
        boolean again = Training.stepsIn(settings, batches.count()) > batches.count();
        Long memory = conditions.memory();
        Plan plan = new Plan(
                bench.manifest, task, memory == null ? Plan.NO_LIMIT : memory, conditions.lowMemory());
        Passes passes = bench.passes(plan, task, again);
        Estimator estimator = Estimator.of(bench.manifest, task, passes);
        try {
            if (settings.mode.equals("iteration")) {
                double seconds =
                        new Iterations(task, bench.bundle, passes, estimator, batches, server, store, tell).run();
                return Double.isNaN(seconds) ? null : (Double) seconds;
            }
            Training training = new Training(task, bench.manifest, estimator, batches);
            LocalRows own = new LocalRows(examples, encoder);
            return train(training, passes, examples.fingerprint(), own, new LocalRows(heldBack, encoder));
        } finally {
            passes.prefixes.clear();
        }
    }

    private double train(Training training, Passes passes, String data, LocalRows own, LocalRows heldBack)
            throws IOException {
        Map<String, Tensor> start = Versions.current(server, store, bench.bundle, task).weights;
        long before = Memory.resident();
        Memory.resetPeak();
        State state = steps(training, resumed(start, data), data);
        Evaluation held = evaluated(passes, heldBack, start, state.weights);
        Moments moments = measured(passes, own, start);
        long peak = Math.max(Memory.peak() - before, 0);
        store.savePersonal(task.bundle, task.version, state.weights);
        Map<String, Tensor> update = new LinkedHashMap<>(training.update(state));
        Report report = Training.report(state, peak, held, moments);
        if (task.clip != null) {
            update = Clipping.clipped(start, update, task.clip);
            report = Clipping.silent(report);
        }
        if (task.sum != null) {
            update = Changes.of(bench.manifest, task.sum.units, update, start);
        }
        update.putAll(moments.tensors);
        store.saveUpdate(update, report);
        return state.seconds / state.step;
    }

    /** Of the features that this device's examples have by the round's weights, where the task asks for them. */
    private Moments measured(Passes passes, LocalRows own, Map<String, Tensor> start) throws IOException {
        if (!task.measure) {
            return Moments.none();
        }
        passes.release(); // to measure is to run other programs
        return Moments.of(passes, own, bench.manifest.model.task, start, task.seed);
    }

    private State steps(Training training, State begun, String data) throws IOException {
        State state = begun;
        int total = training.steps();
        long saved = System.nanoTime();
        try {
            while (state.step < total) {
                checkStopped.run();
                state = training.next(state);
                tellOf(state, total);
                if ((System.nanoTime() - saved) / 1e9 >= CHECKPOINT_SECONDS) {
                    checkpoint(training, state, data);
                    saved = System.nanoTime();
                }
            }
        } catch (Stopped stop) {
            checkpoint(training, state, data);
            throw stop;
        }
        return state;
    }

    private void tellOf(State state, int total) {
        double loss = state.loss / state.step;
        String message = String.format(Locale.ROOT, "step %d of %d, loss %.3f", state.step, total, loss);
        tell.tell(Event.of("progress", message).with("round", task.round).with("step", state.step)
                .with("steps", total).with("loss", loss));
    }

    private void checkpoint(Training training, State state, String data) {
        if (state.step > 0) {
            store.saveProgress(task, data, new Progress(state.step, state.loss, state.examples, state.seconds,
                    training.update(state), state.optimizer));
        }
    }

    private State resumed(Map<String, Tensor> start, String data) {
        Progress found = store.progress(task, data);
        if (found == null) {
            return new State(start);
        }
        String message = "round " + task.round + " goes on after step " + found.step;
        tell.tell(Event.of("resumed", message).with("step", found.step));
        Map<String, Tensor> weights = new LinkedHashMap<>(start);
        weights.putAll(found.weights);
        return new State(weights, found.optimizer, found.step, found.loss, found.examples, found.seconds);
    }

    private Evaluation evaluated(
            Passes passes, LocalRows heldBack, Map<String, Tensor> global, Map<String, Tensor> personal)
            throws IOException {
        if (!task.evaluate || heldBack.count() == 0) {
            return Evaluation.none();
        }
        passes.release(); // evaluation runs other programs
        Evaluation held = Evaluation.of(passes, heldBack, bench.manifest.model.task, global, personal);
        String message = "of " + held.predictions + " held back, the global model gets " + held.right[0]
                + " right, this device's own " + held.right[1];
        tell.tell(Event.of("evaluated", message).with("held_back", held.predictions)
                .with("right_global", held.right[0]).with("right_personal", held.right[1]));
        return held;
    }
}
