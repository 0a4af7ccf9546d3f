package dev.spry.core.data;

import java.util.Collections;
import java.util.List;

/** One row, checked. */
public final class Example {
    public final String text;
    /** The second text of a pair, or the context of a question; null where there is none. */
    public final String pair;
    public final int label;
    /** A question's first answer; null where its context has none. */
    public final String answer;
    /** In Unicode characters of the context, as in SQuAD. */
    public final int answerStart;
    /** All that are right. */
    public final List<String> answers;
    /** The parts of the text that a language model learns, from and to in Unicode characters; null: all of it. */
    final int[][] learnt;
    /** Whether the text has its special tokens in it. */
    final boolean isWhole;

    public Example(String text, String pair, int label) {
        this(text, pair, label, null, 0, Collections.emptyList());
    }

    public Example(String text, String pair, int label, String answer, int answerStart, List<String> answers) {
        this(text, pair, label, answer, answerStart, answers, null, false);
    }

    private Example(String text, String pair, int label, String answer, int answerStart, List<String> answers,
            int[][] learnt, boolean isWhole) {
        this.text = text;
        this.pair = pair;
        this.label = label;
        this.answer = answer;
        this.answerStart = answerStart;
        this.answers = answers;
        this.learnt = learnt;
        this.isWhole = isWhole;
    }

    /** A text of which parts are learnt. */
    public static Example learning(String text, int[][] learnt, boolean isWhole) {
        return new Example(text, null, 0, null, 0, Collections.<String>emptyList(), learnt, isWhole);
    }
}
