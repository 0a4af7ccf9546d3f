package dev.spry.core.data;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

import org.junit.jupiter.api.Test;

import dev.spry.core.ProgramInputException;
import dev.spry.core.text.Tokenizer;

/** The cases of tests/edge_client/data/test_encoder.py. */
class EncoderTest {
    private static final List<String> INPUTS = Arrays.asList("input_ids", "attention_mask", "token_type_ids");
    private static final String TOKENIZER = "{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},"
            + "\"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"[SEP]\", 2], \"cls\": [\"[CLS]\", 1]},"
            + "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": {\"[PAD]\": 0, \"[CLS]\": 1,"
            + "\"[SEP]\": 2, \"[UNK]\": 3, \"a\": 4, \"b\": 5, \"c\": 6, \"d\": 7, \"e\": 8, \"f\": 9, \"g\": 10, \"h\": 11}}}";

    private static Encoder encoder(String task) {
        return new Encoder(Tokenizer.parse(TOKENIZER), INPUTS, 0, task, 3, 8);
    }

    private static Example question(String context, String answer, int start) {
        return new Example("a", context, 0, answer, start,
                answer == null ? Collections.emptyList() : Collections.singletonList(answer));
    }

    @Test
    void textsArePaddedToTheProgramsShape() {
        Encoded found = encoder("seq-cls").encode(Arrays.asList(new Example("a b", null, 1), new Example("c", null, 2)));
        assertEquals(INPUTS, new ArrayList<>(found.tokens.keySet()));
        long[] ids = {1, 4, 5, 2, 0, 0, 0, 0, 1, 6, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        assertArrayEquals(ids, found.tokens.get("input_ids").longs());
        long[] mask = {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
        assertArrayEquals(mask, found.tokens.get("attention_mask").longs(), "no row attends to nothing");
        assertArrayEquals(new float[] {1, 1, 0}, found.weight.floats());
        assertArrayEquals(new long[] {1, 2, 0}, found.labels.longs());
        assertEquals(2, found.examples());
    }

    @Test
    void answersBecomeSpansOfTokens() {
        Encoded found = encoder("qa").encode(Arrays.asList(
                question("b c d e", "c d", 2), question("b c d e", null, 0), question("b c d e f g h", "g h", 10)));
        assertArrayEquals(new long[] {4, 5, 0, 0, -100, -100}, found.labels.longs());
    }

    @Test
    void aLanguageModelsLabelsAreItsTokens() {
        Encoded found = encoder("causal-lm").encode(Collections.singletonList(new Example("a b", null, 0)));
        long[] labels = new long[24];
        Arrays.fill(labels, -100);
        System.arraycopy(new long[] {1, 4, 5, 2}, 0, labels, 0, 4);
        assertArrayEquals(labels, found.labels.longs());
    }

    @Test
    void aBatchHasItsLimits() {
        Example one = new Example("a", null, 0);
        ProgramInputException error = assertThrows(ProgramInputException.class,
                () -> encoder("seq-cls").encode(Arrays.asList(one, one, one, one)));
        assertEquals("expected 1 to 3 texts, got 4", error.getMessage());
        assertThrows(ProgramInputException.class, () -> encoder("seq-cls").encode(Collections.emptyList()));
    }

    @Test
    void programsThatTakeSomethingElseAreRefused() {
        Tokenizer tokenizer = Tokenizer.parse(TOKENIZER);
        List<String> pixels = Collections.singletonList("pixels");
        assertThrows(ProgramInputException.class, () -> new Encoder(tokenizer, pixels, 0, "seq-cls", 3, 8));
    }
}
