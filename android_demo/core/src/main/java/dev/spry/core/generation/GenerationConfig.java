package dev.spry.core.generation;

import java.util.ArrayList;
import java.util.List;

import dev.spry.core.ProgramInputException;

/** What text is asked for. */
public final class GenerationConfig {
    /** How the next token is chosen. */
    public final Sampling sampling = new Sampling();
    /** At most so many tokens; 0: until the model ends, or the cache is full. */
    public int maxTokens;
    /** Words that end the text, and do not belong to it. */
    public final List<String> stop = new ArrayList<>();

    /** Refuses what has no meaning. */
    void check() {
        sampling.check();
        new StopWords(stop);
        if (maxTokens < 0) {
            throw new ProgramInputException("max_tokens must be 1 or more, got " + maxTokens);
        }
    }
}
