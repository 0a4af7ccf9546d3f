package dev.spry.core.training;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

import dev.spry.core.BadAnswerException;
import dev.spry.core.Event;
import dev.spry.core.ServerException;
import dev.spry.core.Tell;
import dev.spry.core.Tensor;
import dev.spry.core.TrainingException;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.store.JobStore;
import dev.spry.core.wire.ScalarReport;
import dev.spry.core.wire.Scalars;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.StepRecord;
import dev.spry.core.wire.Task;

/**
 * Mode iteration: numbers go up, everybody's numbers come down, and the weights follow them step by step.
 *
 * <p>These are the iterations of one round, and the weights between them.
 */
public final class Iterations {
    private static final double POLL_SECONDS = 25;
    /** How long after its deadline a round's last step may still appear. */
    private static final double GRACE_SECONDS = 30;
    private static final double NANOSECOND = 1e-9;

    private final Task task;
    private final Bundle bundle;
    private final Passes passes;
    private final ScalarEstimator estimator;
    private final Batches batches;
    private final Server server;
    private final JobStore store;
    private final Tell tell;
    private final int total;
    private Kept kept;
    private int iteration;
    private double until;
    private int steps;
    private double seconds;

    /**
     * @param passes for the estimator; hears when weights before the cut have moved
     * @param batches one for each iteration
     * @param server where reports go and records come from
     * @param store keeps the newest weights
     * @param tell hears of each iteration
     */
    public Iterations(
            Task task, Bundle bundle, Passes passes, Estimator estimator, Batches batches, Server server,
            JobStore store, Tell tell) throws IOException {
        if (!(estimator instanceof ScalarEstimator)) {
            throw new TrainingException("the estimator " + task.training.estimator
                    + " gives gradients, not numbers: mode iteration cannot use it");
        }
        this.task = task;
        this.bundle = bundle;
        this.passes = passes;
        this.estimator = (ScalarEstimator) estimator;
        this.batches = batches;
        this.server = server;
        this.store = store;
        this.tell = tell;
        kept = Versions.newest(store, bundle, task);
        iteration = task.iteration;
        total = Training.stepsIn(task.training, batches.count());
        until = patience();
    }

    /** Takes part until the round is over; gives the seconds that a step took, NaN where there was none. */
    public double run() throws IOException {
        Kept before = kept;
        try {
            follow(0);
            if (kept.version < task.version) {
                kept = Versions.downloaded(server, kept, bundle.manifest, task);
            }
            while (iteration < total && report() && await()) {
                continue;
            }
        } finally {
            if (kept != before) {
                store.saveWeights(task.bundle, kept);
            }
        }
        return steps > 0 ? seconds / steps : Double.NaN;
    }

    /** Every step gives the round more time. */
    private double patience() {
        return now() + task.seconds + GRACE_SECONDS;
    }

    private static double now() {
        return System.nanoTime() * NANOSECOND;
    }

    /** Sends this iteration's numbers; false when the round takes nothing more. */
    private boolean report() throws IOException {
        double started = now();
        ScalarReport found = estimator.report(batches.at(iteration), kept.weights, iteration);
        steps++;
        seconds += now() - started;
        Training.checkFinite(found.loss, numbers(found), iteration);
        try {
            server.sendJvps(task.id, iteration, Scalars.encode(found));
        } catch (ServerException error) {
            if (error.code.equals("stale")) {
                return true; // the others were faster: their step is on its way
            }
            if (error.code.equals("late")) {
                return false;
            }
            throw error;
        }
        String message = String.format(Locale.ROOT, "iteration %d of %d, loss %.3f", iteration + 1, total, found.loss);
        tell.tell(Event.of("progress", message).with("round", task.round).with("step", iteration + 1)
                .with("steps", total).with("loss", (double) found.loss));
        return true;
    }

    private static Map<String, Tensor> numbers(ScalarReport report) {
        Map<String, Tensor> numbers = new LinkedHashMap<>();
        for (float[] values : new float[][] {report.jvp, report.headJvp, report.headGradient}) {
            if (values != null) {
                numbers.put(String.valueOf(numbers.size()), Tensor.of(values, values.length));
            }
        }
        return numbers;
    }

    /** Until this iteration's step is published; false when it never is. */
    private boolean await() {
        int waited = iteration;
        while (iteration == waited) {
            double left = until - now();
            if (left <= 0) {
                return false;
            }
            follow(Math.min(POLL_SECONDS, left));
        }
        return true;
    }

    /** Brings the weights to the newest version. */
    private void follow(double wait) {
        Server.Steps answer;
        try {
            answer = server.steps(task.job, kept.version, Versions.largest(bundle.manifest), wait);
        } catch (ServerException error) {
            if (!error.code.equals("late")) {
                throw error;
            }
            iteration = total; // the job has ended
            return;
        }
        if (answer.tensors != null) {
            kept = Versions.merged(kept, answer.tensors, bundle.manifest);
            passes.changed(kept.weights.keySet());
            until = patience();
            // Each iteration is a version. The task may have been given out some of them after the round began.
            iteration = Math.max(iteration, answer.tensors.version - task.version);
            return;
        }
        for (StepRecord record : answer.records) {
            apply(record);
        }
    }

    private void apply(StepRecord record) {
        if (record.version > kept.version) {
            if (record.version != kept.version + 1) {
                throw new BadAnswerException("the server's steps start from version " + (record.version - 1)
                        + ", this device has " + kept.version + "; " + Versions.SAME_VERSION);
            }
            Replay replay = new Replay(record, kept, bundle.manifest, task.training, task.optimizers);
            kept = replay.kept;
            passes.changed(replay.moved);
        }
        until = patience();
        if (record.round == task.round) {
            iteration = record.iteration + 1;
        } else if (record.round > task.round) {
            iteration = total;
        }
    }
}
