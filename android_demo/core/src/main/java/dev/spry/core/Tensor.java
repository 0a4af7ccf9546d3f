package dev.spry.core;

import java.util.Arrays;

/** Numbers with a shape, row by row in one array: float[], int[], long[] or byte[]. */
public final class Tensor {
    private final Object values;
    private final int[] shape;

    private Tensor(Object values, int length, int[] shape) {
        if (length != count(shape)) {
            throw new IllegalArgumentException(
                    "expected " + count(shape) + " numbers for the shape " + Arrays.toString(shape) + ", got " + length);
        }
        this.values = values;
        this.shape = shape.clone();
    }

    public static Tensor of(float[] values, int... shape) {
        return new Tensor(values, values.length, shape);
    }

    public static Tensor of(int[] values, int... shape) {
        return new Tensor(values, values.length, shape);
    }

    public static Tensor of(long[] values, int... shape) {
        return new Tensor(values, values.length, shape);
    }

    public static Tensor of(byte[] values, int... shape) {
        return new Tensor(values, values.length, shape);
    }

    /** The array itself, not a copy. */
    public float[] floats() {
        return (float[]) values;
    }

    public int[] ints() {
        return (int[]) values;
    }

    public long[] longs() {
        return (long[]) values;
    }

    public byte[] bytes() {
        return (byte[]) values;
    }

    /** numpy's name, as in a manifest. */
    public String dtype() {
        if (values instanceof float[]) {
            return "float32";
        }
        if (values instanceof int[]) {
            return "int32";
        }
        return values instanceof long[] ? "int64" : "int8";
    }

    public int[] shape() {
        return shape.clone();
    }

    public int size() {
        return count(shape);
    }

    private static int count(int[] shape) {
        int count = 1;
        for (int length : shape) {
            count = Math.multiplyExact(count, length);
        }
        return count;
    }
}
