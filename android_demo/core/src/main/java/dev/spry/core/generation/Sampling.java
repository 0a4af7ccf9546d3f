package dev.spry.core.generation;

import dev.spry.core.ProgramInputException;

/** How the next token is chosen; as it is made, the likeliest. */
public final class Sampling {
    /** 0 takes the likeliest; 1 draws by the model's own probabilities; above, the unlikely come more often. */
    public double temperature;
    /** Draw from this many of the likeliest tokens; 0: from all. */
    public int topK;
    /** Draw from the fewest likeliest tokens whose probabilities add up to this; 1: from all. */
    public double topP = 1;
    /** Above 1, tokens of the prompt and the answer come less often again. */
    public double repetitionPenalty = 1;
    /** The same seed gives the same text; null: another every time. */
    public Long seed;

    /** Refuses what has no meaning. */
    void check() {
        if (!(temperature >= 0) || Double.isInfinite(temperature)) {
            throw new ProgramInputException("temperature must be 0 (the likeliest token) or more, got " + temperature);
        }
        if (topK < 0) {
            throw new ProgramInputException("top_k must be 0 (all tokens) or more, got " + topK);
        }
        if (!(topP > 0 && topP <= 1)) {
            throw new ProgramInputException("top_p must be above 0 and at most 1 (all tokens), got " + topP);
        }
        if (!(repetitionPenalty > 0) || Double.isInfinite(repetitionPenalty)) {
            throw new ProgramInputException("repetition_penalty must be above 0 (1: none), got " + repetitionPenalty);
        }
    }
}
