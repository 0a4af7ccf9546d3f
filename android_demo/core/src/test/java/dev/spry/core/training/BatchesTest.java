package dev.spry.core.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.Map;
import java.util.TreeSet;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.Tensor;
import dev.spry.core.Vectors;

class BatchesTest {
    @Test
    void ordersAsPythonDoes() throws Exception {
        JSONArray vectors = Vectors.read("training.json").getJSONArray("orders");
        assertTrue(vectors.length() > 0);
        for (int i = 0; i < vectors.length(); i++) {
            JSONObject vector = vectors.getJSONObject(i);
            int[] order = Batches.shuffled(
                    vector.getInt("count"), Long.parseUnsignedLong(vector.getString("seed")), vector.getInt("epoch"));
            assertArrayEquals(Vectors.ints(vector.getJSONArray("order")), order);
        }
    }

    @Test
    void aLaterPassVisitsTheSameBatchesInAnotherOrder() throws Exception {
        Batches batches = new Batches(new Numbers(23, 4), 9);
        assertEquals(6, batches.count());
        TreeSet<String> first = new TreeSet<>();
        TreeSet<String> second = new TreeSet<>();
        StringBuilder order = new StringBuilder();
        for (int step = 0; step < 6; step++) {
            first.add(told(batches.at(step)));
            second.add(told(batches.at(6 + step)));
            order.append(batches.at(6 + step).number);
        }
        assertEquals(first, second);
        assertEquals(6, first.size());
        assertNotEquals("012345", order.toString());
    }

    private static String told(Batch batch) {
        return batch.number + Arrays.toString(batch.labels.longs());
    }

    /** Rows that are their own places. */
    private static final class Numbers implements Rows {
        private final int count;
        private final int batch;

        Numbers(int count, int batch) {
            this.count = count;
            this.batch = batch;
        }

        @Override
        public int count() {
            return count;
        }

        @Override
        public int batch() {
            return batch;
        }

        @Override
        public Batch encode(int number, int[] places) {
            long[] labels = Arrays.stream(places).asLongStream().toArray();
            Map<String, Tensor> none = Collections.emptyMap();
            return new Batch(number, none, Tensor.of(labels, labels.length), places.length);
        }
    }
}
