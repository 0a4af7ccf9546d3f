package dev.spry.core.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class MisfitTest {
    private static final List<String> LABELS = Arrays.asList("no", "yes");

    @TempDir
    Path folder;

    private String misfit(String task, boolean skip, String... rows) throws IOException {
        Path path = folder.resolve("rows.jsonl");
        Files.write(path, Arrays.asList(rows), StandardCharsets.UTF_8);
        return Misfit.of(FileSource.of(path.toFile()), task, LABELS, skip);
    }

    private static String labelled(String label) {
        return "{\"text\": \"a\", \"label\": \"" + label + "\"}";
    }

    @Test
    void rowsThatAreNoExamplesAreCountedByLabel() throws IOException {
        String[] rows = {labelled("no"), labelled("so"), labelled("maybe"), labelled("so"), labelled("yes"),
            labelled("a"), labelled("b"), "{\"label\": \"no\"}"};
        assertEquals("5 of 8 rows have a label that it does not know: 'so' (2), 'maybe' (1), 'a' (1) and 1 more; "
                + "1 of 8 rows: has no text; its fields are label", misfit("seq-cls", false, rows));
        assertEquals("", misfit("seq-cls", true, rows));
        assertEquals("", misfit("seq-cls", false, rows[0]));
        assertEquals("", misfit("of-a-later-version", false, rows));
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '`', value = {
        "causal-lm | {'text': 'a'} | {'text': 7} | text must be a text",
        "causal-lm | {'text': 'a'} | {'body': 'a'} | has no text; its fields are body",
        "causal-lm | {'text': 'a', 'messages': null} | {'messages': null, 'body': 'a'} | has no text; its fields are ",
        "causal-lm | {'prompt': 'a', 'completion': 'b'} | {'prompt': 'a'} | both belong together",
        "causal-lm | {'prompt': 'a', 'completion': 'b'} | {'prompt': 'a', 'completion': ''} | completion is empty",
        "causal-lm | {'conversations': [{'from': 'human', 'value': 'a'}]}"
                + " | {'conversations': [{'from': 'human', 'value': 'a'}, {'from': 'moderator', 'value': 'b'}]}"
                + " | message 2 is from 'moderator'",
        "causal-lm | {'messages': [{'role': 'user', 'content': 'a'}]} | {'messages': [{'role': 'user'}]}"
                + " | message 1 must have a content that is a text",
        "qa | {'question': 'who?', 'context': 'a man', 'answers': {'text': ['man'], 'answer_start': [2]}}"
                + " | {'question': 'who?', 'context': 'a man', 'answers': {'text': ['man'], 'answer_start': [1]}}"
                + " | is not at position 1 of its context",
    })
    void rowsThatAreNoExamplesAreToldBeforeTheBundleIsThere(String task, String good, String bad, String why)
            throws IOException {
        String right = good.replace('\'', '"');
        String wrong = bad.replace('\'', '"');
        assertEquals("", misfit(task, false, right, right));
        String told = misfit(task, false, right, wrong, right);
        assertTrue(told.startsWith("1 of 3 rows: ") && told.contains(why), told);
        assertEquals("", misfit(task, true, right, wrong, right));
    }
}
