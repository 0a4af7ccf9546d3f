package dev.spry.core.training;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeSet;

import dev.spry.core.Tensor;
import dev.spry.core.wire.Report;

/** How far one device's update may go, where its job keeps a privacy budget: all of it together, by its L2 norm. */
public final class Clipping {
    private Clipping() {
    }

    /** An update that goes no further than `most` from the round's weights. */
    public static Map<String, Tensor> clipped(Map<String, Tensor> start, Map<String, Tensor> update, double most) {
        double share = Math.min(1, most / Math.max(length(start, update), Double.MIN_NORMAL));
        Map<String, Tensor> kept = new LinkedHashMap<>();
        for (String name : new TreeSet<>(update.keySet())) {
            float[] from = start.get(name).floats();
            float[] to = update.get(name).floats();
            float[] values = new float[to.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) (from[i] + share * ((double) to[i] - from[i]));
            }
            kept.put(name, Tensor.of(values, update.get(name).shape()));
        }
        return kept;
    }

    /** The report without what the examples decide: no privacy budget pays for a loss or a count. */
    public static Report silent(Report report) {
        Report found = new Report(1, report.steps, 0);
        found.seconds = report.seconds;
        found.peakBytes = report.peakBytes;
        return found;
    }

    private static double length(Map<String, Tensor> start, Map<String, Tensor> update) {
        double squares = 0;
        for (Map.Entry<String, Tensor> entry : update.entrySet()) {
            float[] from = start.get(entry.getKey()).floats();
            float[] to = entry.getValue().floats();
            for (int i = 0; i < to.length; i++) {
                double change = (double) to[i] - from[i];
                squares += change * change;
            }
        }
        return Math.sqrt(squares);
    }
}
