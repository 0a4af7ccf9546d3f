package dev.spry.core.numbers;

import dev.spry.core.DirectionException;

/**
 * Random directions, the same numbers on the server and in every client; edge_client/gradient/philox.py holds the
 * definition, tests/vectors/directions.json checks it.
 */
public final class Directions {
    private static final long WORDS = 1L << 32;
    private static final int NORMALS = 4;
    private static final int SIGNS = 128;

    private final long seed;
    private final int unit;
    private final int size;
    private final String kind;
    private final int[] words = new int[4];

    private Directions(long seed, int unit, int size, String kind) {
        this.seed = seed;
        this.unit = unit;
        this.size = size;
        this.kind = kind;
    }

    /**
     * The directions of one unit in one step, as rows [directions x examples, size].
     *
     * @param seed the step's seed, all 64 bits
     * @param unit the unit's number in the manifest, unsigned as the next ones are
     * @param size how many weights the unit has
     * @param iteration the step's number within the round
     * @param directions K, how many directions the step takes
     * @param examples the indices in the batch of the examples that are wanted
     * @param kind normal, rademacher or orthogonal
     */
    public static float[] draw(
            long seed, int unit, int size, int iteration, int directions, int[] examples, String kind) {
        check("size", size, 1, Integer.MAX_VALUE);
        check("directions", directions, 1, Integer.MAX_VALUE);
        check("iteration", Integer.toUnsignedLong(iteration), 0, WORDS / directions - 1);
        Directions drawing = new Directions(seed, unit, size, kind);
        float[] rows = new float[Math.multiplyExact(Math.multiplyExact(directions, examples.length), size)];
        int start = 0;
        for (int k = 0; k < directions; k++) {
            for (int example : examples) {
                drawing.row(iteration, directions, k, example, rows, start);
                start += size;
            }
        }
        return rows;
    }

    /** The indices of a batch's examples. */
    public static int[] firstExamples(int count) {
        int[] examples = new int[count];
        for (int i = 0; i < count; i++) {
            examples[i] = i;
        }
        return examples;
    }

    private void row(int iteration, int directions, int k, int example, float[] rows, int start) {
        switch (kind) {
            case "normal":
                normals(iteration * directions + k, example, rows, start);
                break;
            case "rademacher":
                signs(iteration * directions + k, example, rows, start);
                break;
            case "orthogonal":
                long number = Integer.toUnsignedLong(example) * directions + k;
                check("examples", number, 0, WORDS - 1);
                orthogonal(iteration, number, rows, start);
                break;
            default:
                throw new DirectionException("the job draws " + kind
                        + " directions; this version of spry knows normal, rademacher, orthogonal: upgrade the app");
        }
    }

    private void normals(int step, int example, float[] rows, int start) {
        for (int i = 0; i < size; i += NORMALS) {
            Philox.words(i / NORMALS, unit, step, example, seed, words);
            for (int pair = 0; pair < NORMALS && i + pair < size; pair += 2) {
                double radius = Math.sqrt(-2.0 * Math.log(uniform(words[pair])));
                double angle = uniform(words[pair + 1]) * (2.0 * Math.PI);
                rows[start + i + pair] = (float) (radius * Math.cos(angle));
                if (i + pair + 1 < size) {
                    rows[start + i + pair + 1] = (float) (radius * Math.sin(angle));
                }
            }
        }
    }

    private static double uniform(int word) {
        return (Integer.toUnsignedLong(word) + 0.5) * 0x1p-32;
    }

    private void signs(int step, int example, float[] rows, int start) {
        for (int i = 0; i < size; i++) {
            int within = i % SIGNS;
            if (within == 0) {
                Philox.words(i / SIGNS, unit, step, example, seed, words);
            }
            rows[start + i] = (words[within >> 5] >>> (within & 31) & 1) == 1 ? 1f : -1f;
        }
    }

    /** A row of a Hadamard matrix under the signs of its block. */
    private void orthogonal(int iteration, long number, float[] rows, int start) {
        long side = size == 1 ? 1 : Long.highestOneBit(size - 1L) << 1;
        int row = (int) (number % side);
        signs(iteration, (int) (number / side), rows, start);
        for (int i = 0; i < size; i++) {
            if ((Integer.bitCount(row & i) & 1) == 1) {
                rows[start + i] = -rows[start + i];
            }
        }
    }

    private static void check(String name, long value, long low, long high) {
        if (value < low || value > high) {
            throw new DirectionException(name + " must be from " + low + " to " + high + ", got " + value);
        }
    }
}
