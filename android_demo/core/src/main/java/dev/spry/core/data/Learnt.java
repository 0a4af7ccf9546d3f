package dev.spry.core.data;

import dev.spry.core.text.Encoding;

/** Which of an example's tokens a language model learns, and which are left out where there are too many. */
final class Learnt {
    private Learnt() {}

    /** Of each token, whether it is learnt. */
    static boolean[] of(Example example, Encoding encoding) {
        boolean[] found = new boolean[encoding.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = example.learnt == null;
            for (int j = 0; example.learnt != null && j < example.learnt.length; j++) {
                found[i] |= encoding.starts[i] < example.learnt[j][1] && example.learnt[j][0] < encoding.ends[i];
            }
        }
        return found;
    }

    /**
     * The places of at most so many tokens in a row, with the most that are learnt, the first of several such.
     *
     * <p>`opened`: the first token, which opens every text, stays before them.
     */
    static int[] stretch(boolean[] learnt, int length, boolean opened) {
        int first = opened && length > 1 ? 1 : 0;
        int room = length - first;
        int best = first;
        int most = -1;
        for (int start = first; start + room <= learnt.length; start++) {
            int count = 0;
            for (int i = start + 1 - first; i < start + room; i++) { // the first of all is predicted from nothing
                count += learnt[i] ? 1 : 0;
            }
            if (count > most) {
                most = count;
                best = start;
            }
        }
        int[] places = new int[Math.min(length, learnt.length)];
        for (int i = 0; i < places.length; i++) {
            places[i] = learnt.length <= length || i < first ? i : best + i - first;
        }
        return places;
    }
}
