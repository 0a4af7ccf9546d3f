package dev.spry.core.training;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.TensorSpec;
import dev.spry.core.wire.Task;

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

    /** The turns of a step with so many directions; all begin at the cut where they may not do so `late`. */
    static List<Turn> all(Map<String, Tensor> drawn, int directions, Stepper stepper, int cut, boolean late) {
        int atOnce = stepper.chain.directions;
        int[] begins = new int[directions];
        Arrays.fill(begins, cut);
        if (late) {
            begins = begins(drawn, directions, stepper);
        }
        return inOrder(begins, atOnce, cut);
    }

    private static List<Turn> inOrder(int[] begins, int atOnce, int cut) {
        int directions = begins.length;
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

    /** Of what enters the segments behind the cut where turns may begin. */
    static long bytesBehind(Chain chain, Task task) {
        if (!task.training.unitsApart || task.training.directions == chain.directions) {
            return 0;
        }
        Set<Integer> begins = new TreeSet<>();
        begins.add(chain.head());
        for (int unit : task.units) {
            begins.add(Chain.firstUse(chain.manifest, chain.manifest.unit(unit)));
        }
        long bytes = 0;
        for (int begin : begins) {
            bytes += begin > task.cut ? stateBytes(chain.program(begin, "plain")) : 0;
        }
        return bytes;
    }

    private static long stateBytes(ProgramSpec program) {
        long bytes = 0;
        for (TensorSpec input : program.inputs) {
            if (input.name.equals("hidden")) {
                bytes = Float.BYTES;
                for (int length : input.shape()) {
                    bytes *= length;
                }
            }
        }
        return bytes;
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
