package dev.spry.core;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

import dev.spry.core.bundle.Manifest;
import dev.spry.core.data.Encoded;
import dev.spry.core.data.Example;
import dev.spry.core.text.Encoding;
import dev.spry.core.text.Tokenizer;

/** What a model's logits predict for a batch of examples. */
public final class Logits {
    /** Tokens that an answer may have. */
    private static final int LONGEST_ANSWER = 30;

    private final float[] values;
    private final int[] shape;
    private final List<Example> examples;
    private final Encoded encoded;
    private final String task;

    /**
     * Of [rows, classes] or [rows, length, 2] by the task, a row for each example or more. A language model's programs
     * give two numbers of each token in place of logits: the likeliest follower, and the loss of the true one.
     */
    public Logits(Tensor logits, List<Example> examples, Encoded encoded, String task) {
        values = logits.floats();
        shape = logits.shape();
        this.examples = examples;
        this.encoded = encoded;
        this.task = task;
    }

    List<Prediction> predictions(Manifest manifest, Tokenizer tokenizer) {
        List<Prediction> found = new ArrayList<>();
        for (int row = 0; row < examples.size(); row++) {
            switch (task) {
                case "qa":
                    found.add(new Prediction(answer(row), Collections.<String, Double>emptyMap()));
                    break;
                case "causal-lm":
                    String next = tokenizer.text(likeliest(row, encoded.encodings.get(row).size() - 1));
                    found.add(new Prediction(next, Collections.<String, Double>emptyMap()));
                    break;
                default:
                    found.add(classified(row, manifest.model.labels));
            }
        }
        return found;
    }

    private Prediction classified(int row, List<String> labels) {
        int count = shape[1];
        double sum = 0;
        double[] shares = new double[count];
        float highest = values[row * count + largest(row)];
        for (int i = 0; i < count; i++) {
            shares[i] = Math.exp(values[row * count + i] - highest);
            sum += shares[i];
        }
        Map<String, Double> scores = new LinkedHashMap<>();
        for (int i = 0; i < count; i++) {
            scores.put(name(labels, i), shares[i] / sum);
        }
        return new Prediction(name(labels, largest(row)), scores);
    }

    private static String name(List<String> labels, int number) {
        return number < labels.size() ? labels.get(number) : String.valueOf(number);
    }

    /** The token that a language model expects behind a position. */
    private int likeliest(int row, int position) {
        return (int) values[(row * shape[1] + position) * 2];
    }

    /** The number of the highest value of a row. */
    private int largest(int row) {
        int width = shape[1];
        int start = row * width;
        int best = 0;
        for (int i = 1; i < width; i++) {
            best = values[start + i] > values[start + best] ? i : best;
        }
        return best;
    }

    // --- against what is known ---

    /** How many predictions there are of which the right one is known. */
    public int predictable() {
        if (!task.equals("causal-lm")) {
            return examples.size();
        }
        int count = 0;
        for (int row = 0; row < examples.size(); row++) {
            for (int i = 0; i + 1 < shape[1]; i++) {
                count += following(row, i) == Manifest.IGNORED ? 0 : 1;
            }
        }
        return count;
    }

    /** The token behind a position; IGNORED where it is not learnt. */
    private long following(int row, int position) {
        return encoded.labels.longs()[row * shape[1] + position + 1];
    }

    /** How many of them are right: classes, answers, or the tokens that follow. */
    public int right() {
        int count = 0;
        for (int row = 0; row < examples.size(); row++) {
            count += right(row);
        }
        return count;
    }

    private int right(int row) {
        Example example = examples.get(row);
        if (task.equals("qa")) {
            return Objects.equals(answer(row), example.answer) ? 1 : 0;
        }
        if (!task.equals("causal-lm")) {
            return largest(row) == example.label ? 1 : 0;
        }
        int count = 0;
        for (int i = 0; i + 1 < shape[1]; i++) {
            count += following(row, i) != Manifest.IGNORED && likeliest(row, i) == following(row, i) ? 1 : 0;
        }
        return count;
    }

    // --- answers to questions ---

    /** The likeliest answer's text; null where no span of the context beats the null answer, token 0. */
    private String answer(int row) {
        Encoding encoding = encoded.encodings.get(row);
        int start = row * shape[1] * 2;
        float best = values[start] + values[start + 1];
        int[] span = null;
        for (int first = 0; first < encoding.size(); first++) {
            for (int last = first; last < Math.min(first + LONGEST_ANSWER, encoding.size()); last++) {
                float total = values[start + 2 * first] + values[start + 2 * last + 1];
                if (encoding.texts[first] == 1 && encoding.texts[last] == 1 && total > best) {
                    best = total;
                    span = new int[] {encoding.starts[first], encoding.ends[last]};
                }
            }
        }
        if (span == null) {
            return null;
        }
        String context = examples.get(row).pair;
        return context.substring(context.offsetByCodePoints(0, span[0]), context.offsetByCodePoints(0, span[1]));
    }
}
