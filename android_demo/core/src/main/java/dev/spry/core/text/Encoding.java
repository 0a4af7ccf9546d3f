package dev.spry.core.text;

import java.util.Arrays;
import java.util.List;

/** A text, or a pair of texts, as tokens. */
public final class Encoding {
    /** Of a token that belongs to neither text. */
    public static final int NO_TEXT = -1;

    /** The tokens' numbers. */
    public final int[] ids;
    /** 0 for tokens of the first text, 1 for those of the second, as the model wants them. */
    public final int[] types;
    /** Which text each token is of: 0, 1 or NO_TEXT. */
    public final int[] texts;
    /** Where each token begins and ends in its text, in Unicode characters. */
    public final int[] starts;
    public final int[] ends;

    private Encoding(Builder built) {
        ids = Arrays.copyOf(built.ids, built.count);
        types = Arrays.copyOf(built.types, built.count);
        texts = Arrays.copyOf(built.texts, built.count);
        starts = Arrays.copyOf(built.starts, built.count);
        ends = Arrays.copyOf(built.ends, built.count);
    }

    /** Some of its tokens. */
    public Encoding at(int[] places) {
        Builder built = new Builder();
        for (int place : places) {
            built.add(ids[place], types[place], texts[place], starts[place], ends[place]);
        }
        return built.build();
    }

    /** Texts one behind the other. */
    public static Encoding joined(List<Encoding> encodings) {
        Builder built = new Builder();
        for (Encoding one : encodings) {
            for (int i = 0; i < one.size(); i++) {
                built.add(one.ids[i], one.types[i], one.texts[i], one.starts[i], one.ends[i]);
            }
        }
        return built.build();
    }

    public int size() {
        return ids.length;
    }

    /** The token that holds a character of a text; -1 where it was cut off. */
    public int tokenOf(int character, int text) {
        for (int i = 0; i < ids.length; i++) {
            if (texts[i] == text && starts[i] <= character && character < ends[i]) {
                return i;
            }
        }
        return -1;
    }

    /** Gathers tokens. */
    static final class Builder {
        private int[] ids = new int[64];
        private int[] types = new int[64];
        private int[] texts = new int[64];
        private int[] starts = new int[64];
        private int[] ends = new int[64];
        private int count;

        /** A token of a text. */
        void add(int id, int start, int end) {
            add(id, 0, 0, start, end);
        }

        private void add(int id, int type, int text, int start, int end) {
            if (count == ids.length) {
                ids = Arrays.copyOf(ids, 2 * count);
                types = Arrays.copyOf(types, 2 * count);
                texts = Arrays.copyOf(texts, 2 * count);
                starts = Arrays.copyOf(starts, 2 * count);
                ends = Arrays.copyOf(ends, 2 * count);
            }
            ids[count] = id;
            types[count] = type;
            texts[count] = text;
            starts[count] = start;
            ends[count++] = end;
        }

        /** A token that the model wants around texts. */
        void special(int id, int type) {
            add(id, type, NO_TEXT, 0, 0);
        }

        /** The first tokens of one text. */
        void all(Builder tokens, int type, int text) {
            for (int i = 0; i < tokens.count; i++) {
                add(tokens.ids[i], type, text, tokens.starts[i], tokens.ends[i]);
            }
        }

        /** Takes spaces at either end out of a token's place. */
        void narrow(int token, int leading, int trailing) {
            starts[token] = Math.min(starts[token] + leading, ends[token]);
            if (ends[token] >= trailing) {
                ends[token] = Math.max(ends[token] - trailing, starts[token]);
            }
        }

        int id(int token) {
            return ids[token];
        }

        int start(int token) {
            return starts[token];
        }

        int size() {
            return count;
        }

        void cutTo(int length) {
            count = Math.min(count, length);
        }

        Encoding build() {
            return new Encoding(this);
        }
    }
}
