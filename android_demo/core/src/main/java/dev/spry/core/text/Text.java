package dev.spry.core.text;

import java.util.Arrays;

/**
 * Characters on their way to tokens, each with the place in the given text that it came from.
 *
 * <p>Places count Unicode characters (code points), as Python does, and not the halves of a surrogate pair.
 */
final class Text {
    private final int[] characters;
    private final int[] starts;
    private final int[] ends;
    private final int from;
    private final int to;

    private Text(int[] characters, int[] starts, int[] ends, int from, int to) {
        this.characters = characters;
        this.starts = starts;
        this.ends = ends;
        this.from = from;
        this.to = to;
    }

    static Text of(String given) {
        int[] characters = codePoints(given);
        Builder builder = new Builder(characters.length);
        for (int i = 0; i < characters.length; i++) {
            builder.add(characters[i], i, i + 1);
        }
        return builder.build();
    }

    static int[] codePoints(String given) {
        int[] found = new int[given.codePointCount(0, given.length())];
        int count = 0;
        for (int i = 0; i < given.length(); i += Character.charCount(found[count++])) {
            found[count] = given.codePointAt(i);
        }
        return found;
    }

    int length() {
        return to - from;
    }

    int at(int index) {
        return characters[from + index];
    }

    int start(int index) {
        return starts[from + index];
    }

    int end(int index) {
        return ends[from + index];
    }

    Text part(int first, int stop) {
        return new Text(characters, starts, ends, from + first, from + stop);
    }

    @Override
    public String toString() {
        return new String(characters, from, length());
    }

    /** Gathers characters with their places. */
    static final class Builder {
        private int[] characters;
        private int[] starts;
        private int[] ends;
        private int count;

        Builder(int expected) {
            characters = new int[Math.max(expected, 16)];
            starts = new int[characters.length];
            ends = new int[characters.length];
        }

        void add(int character, int start, int end) {
            if (count == characters.length) {
                characters = Arrays.copyOf(characters, 2 * count);
                starts = Arrays.copyOf(starts, 2 * count);
                ends = Arrays.copyOf(ends, 2 * count);
            }
            characters[count] = character;
            starts[count] = start;
            ends[count++] = end;
        }

        /** A character in the place of one of another text. */
        void add(int character, Text origin, int index) {
            add(character, origin.start(index), origin.end(index));
        }

        Text build() {
            return new Text(characters, starts, ends, 0, count);
        }
    }
}
