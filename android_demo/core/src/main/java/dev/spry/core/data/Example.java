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

    public Example(String text, String pair, int label) {
        this(text, pair, label, null, 0, Collections.emptyList());
    }

    public Example(String text, String pair, int label, String answer, int answerStart, List<String> answers) {
        this.text = text;
        this.pair = pair;
        this.label = label;
        this.answer = answer;
        this.answerStart = answerStart;
        this.answers = answers;
    }
}
