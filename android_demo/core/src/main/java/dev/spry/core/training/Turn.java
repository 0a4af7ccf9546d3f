package dev.spry.core.training;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;

import dev.spry.core.Tensor;

/** Directions that run together: those that begin at the same segment, where an earlier one serves them all as well. */
final class Turn {
    /** Which of the step's directions. */
    final List<Integer> numbers;
    /** The segment where the pass begins: the cut for the first turn, and else where they first move something. */
    final int begin;

    private Turn(List<Integer> numbers, int begin) {
        this.numbers = numbers;
        this.begin = begin;
    }

    /** The turns of a step with so many directions. */
    static List<Turn> all(Map<String, Tensor> drawn, int directions, Stepper stepper, int cut) {
        int atOnce = stepper.chain.directions;
        int[] begins = begins(drawn, directions, stepper);
        List<Integer> order = new ArrayList<>();
        for (int k = 0; k < directions; k++) {
            order.add(k);
        }
        order.sort(Comparator.comparingInt(k -> begins[k])); // stable
        List<Turn> found = new ArrayList<>();
        for (int first = 0; first < directions; first += atOnce) {
            List<Integer> numbers = order.subList(first, first + atOnce);
            found.add(new Turn(numbers, first == 0 ? cut : begins[numbers.get(0)]));
        }
        return found;
    }

    /** For each direction the first segment that it moves anything in. */
    private static int[] begins(Map<String, Tensor> drawn, int directions, Stepper stepper) {
        int[] begins = new int[directions];
        Arrays.fill(begins, stepper.chain.head());
        for (Map.Entry<String, Tensor> entry : drawn.entrySet()) {
            float[] values = entry.getValue().floats();
            int use = stepper.firstUse(entry.getKey());
            int width = values.length / directions;
            for (int k = 0; k < directions; k++) {
                if (use < begins[k] && moves(values, k * width, width)) {
                    begins[k] = use;
                }
            }
        }
        return begins;
    }

    static boolean moves(float[] values, int from, int count) {
        for (int i = from; i < from + count; i++) {
            if (values[i] != 0) {
                return true;
            }
        }
        return false;
    }
}
