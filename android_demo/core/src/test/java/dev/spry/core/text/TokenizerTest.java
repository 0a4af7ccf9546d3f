package dev.spry.core.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import dev.spry.core.BundleException;

/** What a small vocabulary shows; tests/test_android_text.py holds the rest against the `tokenizers` library. */
class TokenizerTest {
    static JSONObject wordPiece() throws JSONException {
        JSONObject vocabulary = new JSONObject();
        String[] tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "##b", "##c", "ab", ",", "e"};
        for (int i = 0; i < tokens.length; i++) {
            vocabulary.put(tokens[i], i);
        }
        return new JSONObject()
                .put("added_tokens", new JSONArray())
                .put("normalizer", new JSONObject().put("type", "BertNormalizer"))
                .put("pre_tokenizer", new JSONObject().put("type", "BertPreTokenizer"))
                .put("post_processor", new JSONObject().put("type", "BertProcessing")
                        .put("sep", new JSONArray("[\"[SEP]\", 3]")).put("cls", new JSONArray("[\"[CLS]\", 2]")))
                .put("model", new JSONObject()
                        .put("type", "WordPiece").put("unk_token", "[UNK]").put("vocab", vocabulary));
    }

    /** Bytes of "low", and two merges. */
    static JSONObject bytes() throws JSONException {
        return new JSONObject()
                .put("pre_tokenizer", new JSONObject().put("type", "ByteLevel").put("add_prefix_space", false))
                .put("model", new JSONObject().put("type", "BPE")
                        .put("vocab", new JSONObject("{\"l\": 0, \"o\": 1, \"w\": 2, \"lo\": 3, \"low\": 4,"
                                + "\"\u0120\": 5, \"\u00c3\": 6, \"\u00a9\": 7}"))
                        .put("merges", new JSONArray("[\"l o\", [\"lo\", \"w\"]]")));
    }

    @Test
    void longestPiecesWithPlaces() throws JSONException {
        Encoding found = Tokenizer.parse(wordPiece().toString()).encode("ABC, é", null, 10);
        assertArrayEquals(new int[] {2, 10, 9, 11, 12, 3}, found.ids);
        assertArrayEquals(new int[] {0, 0, 2, 3, 5, 0}, found.starts);
        assertArrayEquals(new int[] {0, 2, 3, 4, 6, 0}, found.ends);
        assertEquals(2, found.tokenOf(2, 0));
        assertEquals(-1, found.tokenOf(4, 0), "a space is in no token");
    }

    @Test
    void theLongerOfTwoTextsIsCut() throws JSONException {
        Encoding found = Tokenizer.parse(wordPiece().toString()).encode("a b", "c d c d c d", 8);
        assertArrayEquals(new int[] {2, 4, 5, 3, 6, 7, 6, 3}, found.ids);
        assertArrayEquals(new int[] {0, 0, 0, 0, 1, 1, 1, 1}, found.types);
        assertArrayEquals(new int[] {-1, 0, 0, -1, 1, 1, 1, -1}, found.texts);
    }

    @Test
    void bytesJoinInTheOrderOfTheMerges() throws JSONException {
        Tokenizer tokenizer = Tokenizer.parse(bytes().toString());
        assertArrayEquals(new int[] {4, 5, 3, 5, 4}, tokenizer.encode("low lo low", null, 10).ids);
        Encoding accent = tokenizer.encode("wé", null, 10);
        assertArrayEquals(new int[] {2, 6, 7}, accent.ids);
        assertArrayEquals(new int[] {0, 1, 1}, accent.starts, "both bytes are of one character");
        assertEquals("low", tokenizer.text(4));
        assertEquals(" ", tokenizer.text(5));
    }

    @Test
    void aWordOfAHundredThousandLettersTakesNoLongerThanItMust() throws JSONException {
        StringBuilder word = new StringBuilder();
        for (int i = 0; i < 100_000; i++) {
            word.append("low".charAt(i % 3));
        }
        assertEquals(33_334, Tokenizer.parse(bytes().toString()).encode(word.toString(), null, 1 << 20).size());
    }

    @ParameterizedTest
    @CsvSource({"model, Unigram", "normalizer, Precompiled", "pre_tokenizer, Metaspace", "post_processor, Other"})
    void whatItDoesNotKnowIsRefusedByName(String part, String type) throws JSONException {
        JSONObject described = wordPiece();
        JSONObject other = part.equals("model") ? described.getJSONObject("model") : new JSONObject();
        String given = described.put(part, other.put("type", type)).toString();
        BundleException error = assertThrows(BundleException.class, () -> Tokenizer.parse(given));
        assertTrue(error.getMessage().contains("does not know: " + type), error.getMessage());
    }

    @ParameterizedTest
    @CsvSource({"unk_token, <unk>", "continuing_subword_prefix, ##", "end_of_word_suffix, </w>", "byte_fallback, true"})
    void bpeOfCharactersIsRefused(String setting, String value) throws JSONException {
        JSONObject described = bytes();
        described.getJSONObject("model").put(setting, value.equals("true") ? (Object) true : value);
        assertThrows(BundleException.class, () -> Tokenizer.parse(described.toString()));
    }

    @Test
    void aDamagedFileIsToldApart() {
        BundleException error = assertThrows(BundleException.class, () -> Tokenizer.parse("{\"model\": {\"type\": \"BPE\""));
        assertTrue(error.getMessage().startsWith("the bundle's tokenizer.json is damaged"), error.getMessage());
    }
}
