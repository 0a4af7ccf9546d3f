package dev.spry.core.numbers;

/** Philox4x32-10 of Random123: four words of 32 bits from a counter of four words and a key of 64 bits. */
public final class Philox {
    private static final long WORD = 0xFFFFFFFFL;
    private static final long FIRST_MULTIPLIER = 0xD2511F53L;
    private static final long SECOND_MULTIPLIER = 0xCD9E8D57L;
    private static final int FIRST_KEY_STEP = 0x9E3779B9;
    private static final int SECOND_KEY_STEP = 0xBB67AE85;
    private static final int ROUNDS = 10;

    private Philox() {}

    /** Fills `out` with the four words of a counter; all numbers are unsigned. */
    public static void words(int c0, int c1, int c2, int c3, long key, int[] out) {
        int key0 = (int) key;
        int key1 = (int) (key >>> 32);
        for (int round = 0; round < ROUNDS; round++) {
            long first = FIRST_MULTIPLIER * (c0 & WORD);
            long second = SECOND_MULTIPLIER * (c2 & WORD);
            c0 = (int) (second >>> 32) ^ c1 ^ key0;
            c1 = (int) second;
            c2 = (int) (first >>> 32) ^ c3 ^ key1;
            c3 = (int) first;
            key0 += FIRST_KEY_STEP;
            key1 += SECOND_KEY_STEP;
        }
        out[0] = c0;
        out[1] = c1;
        out[2] = c2;
        out[3] = c3;
    }
}
