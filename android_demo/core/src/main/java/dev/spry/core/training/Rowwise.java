package dev.spry.core.training;

import dev.spry.core.Tensor;

/** Tensors cut and filled along their first axis. */
final class Rowwise {
    private Rowwise() {}

    /** Rows from `start` up to `end`, then the last one again up to `size` of them. */
    static Tensor filled(Tensor tensor, int start, int end, int size) {
        int[] shape = tensor.shape();
        if (start == 0 && end == shape[0] && size == shape[0]) {
            return tensor;
        }
        int width = tensor.size() / shape[0];
        shape[0] = size;
        long[] values = tensor.longs();
        long[] found = new long[size * width];
        for (int row = 0; row < size; row++) {
            System.arraycopy(values, Math.min(start + row, end - 1) * width, found, row * width, width);
        }
        return Tensor.of(found, shape);
    }

    /** A shape with `rows` in front. */
    static int[] shaped(int rows, int... shape) {
        int[] found = new int[shape.length + 1];
        found[0] = rows;
        System.arraycopy(shape, 0, found, 1, shape.length);
        return found;
    }

    /** A shape without its first number. */
    static int[] inner(int[] shape) {
        int[] found = new int[shape.length - 1];
        System.arraycopy(shape, 1, found, 0, found.length);
        return found;
    }
}
