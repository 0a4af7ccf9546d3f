package dev.spry.core;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;

import dev.spry.core.data.Encoded;
import dev.spry.core.data.Encoder;
import dev.spry.core.data.Example;
import dev.spry.core.text.Tokenizer;

class LogitsTest {
    private static final int LENGTH = 8;
    private static final List<String> WORDS = Arrays.asList("[UNK]", "the", "ice", "on", "lake", "where", "is", "it");

    private static Encoded encoded(String task, List<Example> examples) throws Exception {
        JSONObject vocabulary = new JSONObject();
        for (String word : WORDS) {
            vocabulary.put(word, vocabulary.length());
        }
        JSONObject model = new JSONObject().put("type", "WordPiece").put("vocab", vocabulary).put("unk_token", "[UNK]")
                .put("continuing_subword_prefix", "##").put("max_input_chars_per_word", 100);
        JSONObject words = new JSONObject().put("type", "WhitespaceSplit");
        String tokenizer = new JSONObject().put("model", model).put("pre_tokenizer", words).toString();
        JSONObject manifest = Vectors.manifest().put("inputs", new JSONArray().put("input_ids"));
        manifest.getJSONObject("model").put("task", task);
        return new Encoder(Tokenizer.parse(tokenizer), Vectors.parsed(manifest), examples.size(), LENGTH)
                .encode(examples);
    }

    private static Example question(String answer, int start) {
        List<String> answers = answer == null ? Collections.<String>emptyList() : Collections.singletonList(answer);
        return new Example("where is it", "it is on the lake", 0, answer, start, answers);
    }

    @Test
    void countsClasses() throws Exception {
        List<Example> examples = Arrays.asList(new Example("ice", null, 2), new Example("lake", null, 0));
        Tensor scores = Tensor.of(new float[] {0, 1, 3, 4, 5, 6}, 2, 3);
        Logits logits = new Logits(scores, examples, encoded("seq-cls", examples), "seq-cls");
        assertEquals(2, logits.predictable());
        assertEquals(1, logits.right());
    }

    /** The question's tokens are 0 to 2, the context's 3 to 7: "it is on the lake". */
    @Test
    void countsAnswers() throws Exception {
        List<Example> examples = new ArrayList<>();
        examples.add(question("the lake", 9));
        examples.add(question("on", 6));
        examples.add(question(null, 0));
        float[] scores = new float[3 * LENGTH * 2];
        for (int row = 0; row < 2; row++) { // both: from `the` to `lake`
            scores[(row * LENGTH + 6) * 2] = 5;
            scores[(row * LENGTH + 7) * 2 + 1] = 5;
        }
        scores[2 * LENGTH * 2] = 3; // none: token 0 is likeliest
        Tensor tensor = Tensor.of(scores, 3, LENGTH, 2);
        Logits logits = new Logits(tensor, examples, encoded("qa", examples), "qa");
        assertEquals(3, logits.predictable());
        assertEquals(2, logits.right());
    }

    @Test
    void countsOfAnAnswerItsTokensAlone() throws Exception {
        List<Example> examples =
                Collections.singletonList(Example.learning("the ice is on the lake", new int[][] {{8, 13}}, true));
        float[] likeliest = new float[LENGTH * 2]; // and losses
        likeliest[0] = WORDS.indexOf("ice"); // right, and not learnt
        likeliest[2] = WORDS.indexOf("is");
        likeliest[4] = WORDS.indexOf("lake"); // where `on` follows
        Logits logits = new Logits(
                Tensor.of(likeliest, 1, LENGTH, 2), examples, encoded("causal-lm", examples), "causal-lm");
        assertEquals(2, logits.predictable());
        assertEquals(1, logits.right());
    }

    @Test
    void countsTheTokensThatFollow() throws Exception {
        List<Example> examples = Arrays.asList(new Example("the ice is on", null, 0), new Example("it", null, 0));
        float[] likeliest = new float[2 * LENGTH * 2]; // and losses
        likeliest[0] = WORDS.indexOf("ice"); // after `the`
        likeliest[2] = WORDS.indexOf("on"); // after `ice`, where `is` follows
        likeliest[4] = WORDS.indexOf("on"); // after `is`
        Tensor tensor = Tensor.of(likeliest, 2, LENGTH, 2);
        Logits logits = new Logits(tensor, examples, encoded("causal-lm", examples), "causal-lm");
        assertEquals(3, logits.predictable());
        assertEquals(2, logits.right());
    }
}
