package dev.spry.core.data;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.json.JSONObject;

/** How many rows are no examples of a job, and why, as far as it can be told without the job's bundle. */
public final class Misfit implements Source.Rows {
    private static final List<String> TASKS = Arrays.asList("seq-cls", "qa", "causal-lm");
    /** Labels that are told one by one. */
    private static final int NAMED = 3;

    private final Rows rows;
    private final Map<String, Integer> labels = new LinkedHashMap<>();
    private final Map<String, Integer> others = new LinkedHashMap<>();
    private int count;

    private Misfit(Rows rows) {
        this.rows = rows;
    }

    /** In words; empty where these rows can be trained on, and for a task that this version does not know. */
    public static String of(Source source, String task, List<String> labels, boolean skip) throws IOException {
        if (!TASKS.contains(task)) {
            return "";
        }
        Misfit found = new Misfit(new Rows(task, labels, null));
        source.rows(found);
        return found.told(skip);
    }

    @Override
    public void row(String place, long at, JSONObject row, String problem) {
        count++;
        try {
            if (row == null) {
                throw new BadRow(problem);
            }
            rows.require(row);
        } catch (UnknownLabel error) {
            labels.merge(error.label, 1, Integer::sum);
        } catch (BadRow error) {
            others.merge(error.getMessage(), 1, Integer::sum);
        }
    }

    private String told(boolean skip) {
        int unknown = sum(labels);
        int bad = unknown + sum(others);
        if (bad == 0 || (skip && bad < count)) {
            return "";
        }
        List<String> parts = new ArrayList<>();
        if (unknown > 0) {
            List<String> named = new ArrayList<>();
            for (Map.Entry<String, Integer> one : most(labels)) {
                named.add("'" + one.getKey() + "' (" + one.getValue() + ")");
            }
            int more = named.size() - NAMED;
            String shown = String.join(", ", named.subList(0, Math.min(NAMED, named.size())));
            parts.add(unknown + " of " + count + " rows have a label that it does not know: " + shown
                    + (more > 0 ? " and " + more + " more" : ""));
        }
        if (!others.isEmpty()) {
            Map.Entry<String, Integer> first = most(others).get(0);
            parts.add(first.getValue() + " of " + count + " rows: " + first.getKey());
        }
        return String.join("; ", parts);
    }

    /** The most frequent first; of those that are as frequent, the one that came first. */
    private static List<Map.Entry<String, Integer>> most(Map<String, Integer> counts) {
        List<Map.Entry<String, Integer>> found = new ArrayList<>(counts.entrySet());
        found.sort((one, other) -> Integer.compare(other.getValue(), one.getValue()));
        return found;
    }

    private static int sum(Map<String, Integer> counts) {
        int sum = 0;
        for (int one : counts.values()) {
            sum += one;
        }
        return sum;
    }
}
