package dev.spry.core.training;

import java.io.IOException;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

import dev.spry.core.Tensor;

/**
 * What a device's examples hand to the layer that gives the logits: their mean, and the means of products of two
 * features about their means. A device tells them where its task asks for them, of a few examples, beside its update.
 */
public final class Moments {
    /** Examples that are looked at. */
    static final int MOST = 64;
    /** Of more features only the variances are told: products of any two would be megabytes. */
    static final int MOST_PRODUCTS = 1024;
    /** Before their names in an update. */
    private static final String FEATURES = "f:";

    /** Rows of features that they are of. */
    public final int rows;
    /** As an update has them. */
    public final Map<String, Tensor> tensors;

    private Moments(int rows, Map<String, Tensor> tensors) {
        this.rows = rows;
        this.tensors = tensors;
    }

    /** Where nothing is asked for. */
    public static Moments none() {
        return new Moments(0, Collections.<String, Tensor>emptyMap());
    }

    /** Of some of the examples, which a seed chooses. */
    public static Moments of(Passes passes, LocalRows rows, String task, Map<String, Tensor> weights, long seed)
            throws IOException {
        int[] chosen = Arrays.copyOf(Batches.shuffled(rows.count(), seed, 0), Math.min(rows.count(), MOST));
        Arrays.sort(chosen);
        Sums sums = new Sums();
        for (int start = 0; start < chosen.length; start += rows.batch()) {
            int end = Math.min(start + rows.batch(), chosen.length);
            LocalRows.Chosen part = rows.chosen(Arrays.copyOfRange(chosen, start, end));
            Tensor features = passes.features(part.batch, weights);
            for (int row = 0; row < end - start; row++) {
                sums.add(features, row, part.encoded.encodings.get(row).size(), task);
            }
        }
        return sums.moments();
    }

    /** Of rows, added up. */
    private static final class Sums {
        private int rows;
        private double[] sum;
        private double[] products;

        /** An example's row, or those of its tokens; of a decoder that tells classes its last token's. */
        void add(Tensor features, int example, int tokens, String task) {
            int[] shape = features.shape();
            int width = shape[shape.length - 1];
            if (shape.length == 2) {
                add(features.floats(), example * width, width);
                return;
            }
            int first = task.equals("seq-cls") ? tokens - 1 : 0;
            for (int token = first; token < tokens; token++) {
                add(features.floats(), (example * shape[1] + token) * width, width);
            }
        }

        private void add(float[] values, int start, int width) {
            boolean all = width <= MOST_PRODUCTS;
            if (sum == null) {
                sum = new double[width];
                products = new double[all ? width * (width + 1) / 2 : width];
            }
            rows++;
            int place = 0;
            for (int i = 0; i < width; i++) {
                double value = values[start + i];
                sum[i] += value;
                for (int j = i; j < (all ? width : i + 1); j++) {
                    products[place++] += value * values[start + j];
                }
            }
        }

        Moments moments() {
            Map<String, Tensor> tensors = new LinkedHashMap<>();
            tensors.put(FEATURES + "mean", mean());
            tensors.put(FEATURES + "products", aboutMeans());
            return new Moments(rows, tensors);
        }

        private Tensor mean() {
            float[] means = new float[sum.length];
            for (int i = 0; i < means.length; i++) {
                means[i] = (float) (sum[i] / rows);
            }
            return Tensor.of(means, means.length);
        }

        private Tensor aboutMeans() {
            int width = sum.length;
            float[] means = new float[products.length];
            int place = 0;
            for (int i = 0; i < width; i++) {
                for (int j = i; j < (width <= MOST_PRODUCTS ? width : i + 1); j++) {
                    double about = products[place] / rows - sum[i] / rows * (sum[j] / rows);
                    means[place++] = (float) (i == j ? Math.max(about, 0) : about);
                }
            }
            return Tensor.of(means, means.length);
        }
    }
}
