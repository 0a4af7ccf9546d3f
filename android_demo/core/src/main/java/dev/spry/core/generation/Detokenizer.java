package dev.spry.core.generation;

import dev.spry.core.text.Tokenizer;

/** From tokens to text as they come: whole characters. */
final class Detokenizer {
    private final Tokenizer tokenizer;
    private final WholeCharacters characters = new WholeCharacters();

    Detokenizer(Tokenizer tokenizer) {
        this.tokenizer = tokenizer;
    }

    /** What a token adds; nothing while a character's bytes are not all there. */
    String add(int token) {
        return characters.read(tokenizer.bytes(token), false);
    }

    /** What was held back, when no token follows. */
    String flush() {
        return characters.read(new byte[0], true);
    }
}
