package dev.spry.core.training;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import dev.spry.core.Tensor;
import dev.spry.core.TrainingException;
import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Parameter;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.wire.Task;

/** How a step's gradient is found, of a task's units and of the head: forward, central, exact or mixed, as a task names it. */
public abstract class Estimator {
    protected final Manifest manifest;
    protected final Task task;
    protected final Passes passes;

    Estimator(Manifest manifest, Task task, Passes passes) {
        this.manifest = manifest;
        this.task = task;
        this.passes = passes;
    }

    /** Ready for a task's steps. */
    public static Estimator of(Manifest manifest, Task task, Passes passes) {
        switch (task.training.estimator) {
            case "forward":
                return new Forward(manifest, task, passes);
            case "central":
                return new Central(manifest, task, passes);
            case "exact":
                return new Exact(manifest, task, passes);
            case "mixed":
                return new Mixed(manifest, task, passes);
            default:
                throw unknown(task);
        }
    }

    /** What a step of the task loads. */
    static List<ProgramSpec> programs(Chain chain, Task task) {
        switch (task.training.estimator) {
            case "forward":
                List<ProgramSpec> found = chain.prefix(task.cut);
                found.addAll(chain.suffix(task.cut, !task.training.head.equals("exact")));
                return found;
            case "central":
                return chain.forward(0);
            case "exact":
                return chain.exact(task.cut);
            case "mixed":
                return chain.mixed(task.cut, chain.exactCut(task.cut, task.training.exactBlocks));
            default:
                throw unknown(task);
        }
    }

    /** The loss and the gradient of one step; `iteration` is its number within the round. */
    public abstract Estimate gradient(Batch batch, Map<String, Tensor> weights, int iteration) throws IOException;

    /** The parameters that the task moves, its units' and the head's, by name. */
    public static Set<String> trained(Manifest manifest, Task task) {
        Set<String> names = new TreeSet<>(manifest.headNames());
        for (int unit : task.units) {
            for (Parameter parameter : manifest.unit(unit).parameters) {
                names.add(parameter.name);
            }
        }
        return names;
    }

    /** Those of what the task moves: the way back meets other clients' units too. */
    Map<String, Tensor> own(Map<String, Tensor> gradients) {
        Map<String, Tensor> own = new LinkedHashMap<>(gradients);
        own.keySet().retainAll(trained(manifest, task));
        return own;
    }

    private static TrainingException unknown(Task task) {
        return new TrainingException("this version of spry has no estimator '" + task.training.estimator
                + "'; it has forward, central, exact, mixed: upgrade the app");
    }
}
