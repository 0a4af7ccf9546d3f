package dev.spry.core.training;

import java.util.List;

import dev.spry.core.TrainingException;
import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.Shape;
import dev.spry.core.wire.Task;

/** How a task runs within some memory: in which shape, with which programs, and what may be kept beside them. */
public final class Plan {
    /** Stands for "as much as it takes". */
    public static final long NO_LIMIT = -1;

    private static final long CACHE_WITHOUT_LIMIT = 256L << 20;
    private static final double MEGABYTE = 1e6;

    public final Chain chain;
    /** What the task's steps load. */
    public final List<ProgramSpec> programs;
    /** Hold one program at a time. */
    public final boolean lowMemory;
    /** For hidden states that enter the cut. */
    public final long cacheBytes;

    /**
     * Programs side by side where they fit into `memory` bytes, one at a time where not or where `alone`; the rest may
     * keep prefixes.
     */
    public Plan(Manifest manifest, Task task, long memory, boolean alone) {
        int batch = rowsAtOnce(manifest, task);
        int directions = directionsAtOnce(manifest, task.training.directions);
        chain = new Chain(manifest, task.runtime, batch, task.training.length, directions);
        programs = Estimator.programs(chain, task);
        long loaded = 0;
        long peak = 0;
        long largest = 0;
        for (ProgramSpec program : programs) {
            loaded += program.loadBytes;
            peak = Math.max(peak, program.peakBytes);
            largest = Math.max(largest, program.loadBytes + program.peakBytes);
        }
        if (memory != NO_LIMIT && largest > memory) {
            throw new TrainingException("the task needs " + Math.round(largest / MEGABYTE)
                    + " MB for its largest program, training may take " + Math.round(memory / MEGABYTE)
                    + " MB: raise the limit, or close other apps");
        }
        lowMemory = alone || (memory != NO_LIMIT && loaded + peak > memory);
        long left = memory == NO_LIMIT ? CACHE_WITHOUT_LIMIT : memory - (lowMemory ? largest : loaded + peak);
        cacheBytes = Math.min(left, CACHE_WITHOUT_LIMIT);
    }

    /** The largest batch that the bundle has programs for and the task allows. */
    static int rowsAtOnce(Manifest manifest, Task task) {
        int most = Math.min(task.batch, task.training.batch);
        int found = 0;
        for (Shape shape : manifest.shapes) {
            if (shape.length == task.training.length && shape.batch <= most) {
                found = Math.max(found, shape.batch);
            }
        }
        if (found == 0) {
            throw new TrainingException("the bundle has no programs for at most " + most + " examples of "
                    + task.training.length + " tokens; it has " + manifest.shapes);
        }
        return found;
    }

    /** The largest number of directions that there are programs for and that divides what is wanted. */
    static int directionsAtOnce(Manifest manifest, int directions) {
        int found = 0;
        for (int offered : manifest.directions) {
            found = directions % offered == 0 ? Math.max(found, offered) : found;
        }
        return found > 0 ? found : manifest.directions.isEmpty() ? directions : manifest.directions.get(0);
    }
}
