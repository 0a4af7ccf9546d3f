package dev.spry.core;

import java.util.Map;

/** For one text: its class with every class's probability, a question's answer, or the next token. */
public final class Prediction {
    /** null where a question has no answer. */
    public final String label;
    /** By class; empty where there are none. */
    public final Map<String, Double> scores;

    Prediction(String label, Map<String, Double> scores) {
        this.label = label;
        this.scores = scores;
    }
}
