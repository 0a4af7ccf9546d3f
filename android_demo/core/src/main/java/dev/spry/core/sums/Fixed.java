package dev.spry.core.sums;

import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.json.JSONException;
import org.json.JSONObject;

/** Numbers as integers that can be added without a rounding, as edge_client/sums/fixed.py has them. */
public final class Fixed {
    /** What a round may change a number by; beyond it is cut off. */
    static final double CLIP = 2.0;
    /** Of fewer devices' parts no device helps to open a sum, whatever the server says. */
    static final int FEWEST = 3;
    /** Devices of a sum. */
    public static final int MOST = 4096;
    static final int WHOLE = 1 << 16;
    private static final double REAL = 1 << 20;
    private static final double LARGEST_REAL = 1 << 28;
    private static final long LARGEST_COUNT = 1L << 40;

    private Fixed() {}

    /** What a change of 1 becomes, where so many devices are added. */
    public static int scale(int count) {
        return Integer.highestOneBit((int) Math.floor(Integer.MAX_VALUE / (count * CLIP)));
    }

    /** By examples, of which no more than the cap count. */
    public static int weight(long examples, long cap) {
        return (int) Math.max(1, Math.rint((double) WHOLE * Math.min(examples, cap) / cap));
    }

    /** A flat change with its weight, which stands last; modulo 2^32. */
    public static int[] encoded(float[] change, int weighs, int count) {
        int[] found = new int[change.length + 1];
        double factor = scale(count) * ((double) weighs) / WHOLE;
        for (int at = 0; at < change.length; at++) {
            found[at] = (int) Math.rint(Math.max(-CLIP, Math.min(CLIP, change[at])) * factor);
        }
        found[change.length] = weighs;
        return found;
    }

    /** A report as integers; the scores are the task's beside what is counted. */
    public static long[] told(Told report, int weighs, List<String> scores) {
        long[] counts = {
            1, report.examples, report.steps, weighs,
            report.heldBack > 0 ? 1 : 0, report.heldBack, report.rightGlobal, report.rightPersonal,
        };
        long[] found = new long[counts.length + 1 + 2 * scores.size()];
        for (int at = 0; at < counts.length; at++) {
            found[at] = Math.min(counts[at], LARGEST_COUNT);
        }
        int at = counts.length;
        found[at++] = real(report.loss * weighs / WHOLE);
        for (String name : scores) {
            found[at++] = real(report.sumsGlobal.getOrDefault(name, 0.0));
        }
        for (String name : scores) {
            found[at++] = real(report.sumsPersonal.getOrDefault(name, 0.0));
        }
        return found;
    }

    private static long real(double value) {
        return (long) Math.rint(Math.max(-LARGEST_REAL, Math.min(LARGEST_REAL, value)) * REAL);
    }

    /** What a report says. */
    public static final class Told {
        public long examples;
        public long steps;
        public double loss;
        public long heldBack;
        public long rightGlobal;
        public long rightPersonal;
        public Map<String, Double> sumsGlobal = new HashMap<>();
        public Map<String, Double> sumsPersonal = new HashMap<>();

        Told() {}

        /** Out of a report; of examples held back nothing where it does not have all of the scores. */
        public Told(JSONObject report, List<String> scores) throws JSONException {
            examples = report.getLong("examples");
            steps = report.getLong("steps");
            loss = report.getDouble("loss");
            putAll(sumsGlobal, report.optJSONObject("sums_global"));
            putAll(sumsPersonal, report.optJSONObject("sums_personal"));
            if (sumsGlobal.keySet().containsAll(scores) && sumsPersonal.keySet().containsAll(scores)) {
                heldBack = report.getLong("held_back");
                rightGlobal = report.getLong("right_global");
                rightPersonal = report.getLong("right_personal");
            }
        }

        private static void putAll(Map<String, Double> sums, JSONObject told) throws JSONException {
            if (told != null) {
                for (Iterator<String> names = told.keys(); names.hasNext(); ) {
                    String name = names.next();
                    sums.put(name, told.getDouble(name));
                }
            }
        }
    }
}
