package dev.spry.core.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import dev.spry.core.DataException;

class ExamplesTest {
    private static final List<String> LABELS = Arrays.asList("no", "yes");

    @TempDir
    Path folder;

    private Source file(String content) throws IOException {
        Path path = folder.resolve("data.jsonl");
        Files.write(path, content.getBytes(StandardCharsets.UTF_8));
        return FileSource.of(path.toFile());
    }

    private static Examples examples(Source source, String task, boolean skip) throws IOException {
        return Examples.of(source, new Rows(task, LABELS, new Template(false, null, "", "no template")), skip);
    }

    private static String rows(int count) {
        StringBuilder all = new StringBuilder();
        for (int i = 0; i < count; i++) {
            all.append("{\"text\": \"text ").append(i).append("\", \"label\": ").append(i % 2).append("}\n");
        }
        return all.toString();
    }

    @Test
    void rowsBecomeExamples() throws IOException {
        Source source = file("\uFEFF{\"text\": \"fine\", \"label\": \"yes\"}\r\n\n"
                + "{\"text\": \"worse\", \"text_pair\": \"second\", \"label\": 0}\n{\"text\": \"last\", \"label\": \"1\"}");
        Examples found = examples(source, "seq-cls", false);
        assertEquals(3, found.size());
        assertEquals(3, Examples.count(source, false));
        assertEquals("fine", found.get(0).text);
        assertEquals(1, found.get(0).label);
        assertEquals("second", found.get(1).pair);
        assertEquals(1, found.get(2).label);
        assertNull(found.skipped);
    }

    @Test
    void answersCountCharactersAsSquadDoes() throws IOException {
        Source source = file("{\"question\": \"what?\", \"context\": \"\uD83D\uDE00 a red kite\","
                + " \"answers\": {\"text\": [\"red kite\"], \"answer_start\": [4]}}\n"
                + "{\"question\": \"who?\", \"context\": \"nobody\", \"answers\": {\"text\": [], \"answer_start\": []}}\n");
        Examples found = examples(source, "qa", false);
        assertEquals("red kite", found.get(0).answer);
        assertNull(found.get(1).answer);
    }

    @ParameterizedTest
    @ValueSource(strings = {"{\"text\": \"a\"}", "{\"text\": \" \", \"label\": 1}", "{\"text\": \"a\", \"label\": \"maybe\"}",
        "{\"text\": \"a\", \"label\": 2}", "{\"text\": \"a\", \"label\": 0.5}", "{\"text\": \"a\", \"label\": true}",
        "{\"text\": 7, \"label\": 1}", "{\"label\": 1}", "text", "{\"text\": \"a\"", "{\"text\": \"\\ud800\", \"label\": 1}"})
    void aBadRowIsNamedOrLeftOut(String row) throws IOException {
        Source source = file("{\"text\": \"good\", \"label\": 1}\n" + row + "\n");
        DataException error = assertThrows(DataException.class, () -> examples(source, "seq-cls", false));
        assertTrue(error.getMessage().contains(", line 2: "), error.getMessage());
        Examples kept = examples(source, "seq-cls", true);
        assertEquals(1, kept.size());
        assertTrue(kept.skipped.startsWith("line 2: "), kept.skipped);
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "\uFEFF", " \n"})
    void aListHasItsRows(String before) throws IOException {
        String first = "{\"text\": \"a, [b] {\\\\\\\"}\", \"label\": 1, \"more\": [[{\"x\": [2]}], \"]\"]}";
        Source source = file(before + "[" + first + ",\n 7,{\"text\": \"l\u00e4st\", \"label\": 0}\n]\n");
        DataException error = assertThrows(DataException.class, () -> examples(source, "seq-cls", false));
        assertTrue(error.getMessage().contains(", row 2: "), error.getMessage());
        Examples kept = examples(source, "seq-cls", true);
        assertEquals(2, kept.size());
        assertEquals("a, [b] {\\\"}", kept.get(0).text);
        assertEquals("l\u00e4st", kept.get(1).text);
        assertTrue(kept.skipped.startsWith("row 2: "), kept.skipped);
    }

    @ParameterizedTest
    @ValueSource(strings = {"[{\"text\": \"a\", \"label\": 1},", "[{\"text\": \"a\", \"label\": 1}", "[{\"text\": \"a\", \"label\": 1}, \n "})
    void aListThatEndsEarlyIsTold(String content) throws IOException {
        Source source = file(content);
        DataException error = assertThrows(DataException.class, () -> examples(source, "seq-cls", false));
        assertTrue(error.getMessage().contains(", the end: nothing closes the list"), error.getMessage());
        assertEquals(1, examples(source, "seq-cls", true).size());
    }

    @Test
    void aListsValueWithoutEndFillsNoMemory() throws IOException {
        StringBuilder text = new StringBuilder("[{\"text\": \"");
        for (int i = 0; i < FileSource.LONGEST; i++) {
            text.append('x');
        }
        Source source = file(text + "\"}, {\"text\": \"good\", \"label\": 0}]");
        DataException error = assertThrows(DataException.class, () -> examples(source, "seq-cls", false));
        assertTrue(error.getMessage().contains("row 1: is longer than 1,048,576 bytes"), error.getMessage());
        assertEquals("good", examples(source, "seq-cls", true).get(0).text);
    }

    @Test
    void bytesThatAreNoTextAreNamed() throws IOException {
        Path path = folder.resolve("latin.jsonl");
        Files.write(path, "{\"text\": \"caf\u00e9\", \"label\": 1}\n".getBytes(StandardCharsets.ISO_8859_1));
        DataException error = assertThrows(DataException.class, () -> Examples.count(new JsonlSource(path.toFile()), false));
        assertTrue(error.getMessage().contains("line 1: is not UTF-8"), error.getMessage());
    }

    @Test
    void aLineWithoutEndFillsNoMemory() throws IOException {
        StringBuilder line = new StringBuilder("{\"text\": \"");
        for (int i = 0; i < FileSource.LONGEST; i++) {
            line.append('x');
        }
        Source source = file(line + "\"}\n" + rows(1));
        DataException error = assertThrows(DataException.class, () -> examples(source, "seq-cls", false));
        assertTrue(error.getMessage().contains("line 1: is longer than 1,048,576 bytes"), error.getMessage());
        assertEquals("text 0", examples(source, "seq-cls", true).get(0).text);
    }

    @Test
    void contentDecidesWhatIsHeldBack() throws IOException {
        Examples[] parts = examples(file(rows(200)), "seq-cls", false).split(0.1, 0);
        assertEquals(200, parts[0].size() + parts[1].size());
        assertTrue(parts[1].size() > 5 && parts[1].size() < 40, "held back: " + parts[1].size());
        Set<String> held = new HashSet<>();
        for (int i = 0; i < parts[1].size(); i++) {
            held.add(parts[1].get(i).text);
        }
        Examples later = examples(file("{\"text\": \"new\", \"label\": 1}\n" + rows(200)), "seq-cls", false);
        Examples again = later.split(0.1, 0)[1];
        for (int i = 0; i < again.size(); i++) {
            assertTrue(again.get(i).text.equals("new") || held.contains(again.get(i).text));
        }
        assertEquals(0, examples(file(rows(9)), "seq-cls", false).split(0, 0)[1].size());
        assertEquals(1, examples(file(rows(2)), "seq-cls", false).split(0.0001, 0)[1].size());
        assertThrows(DataException.class, () -> later.split(1, 0));
    }

    @Test
    void aFileThatChangedIsNoticed() throws IOException {
        Examples found = examples(file(rows(3)), "seq-cls", false);
        file(rows(3).replace("text", "next"));
        DataException error = assertThrows(DataException.class, () -> found.get(1));
        assertTrue(error.getMessage().contains("changed while it was in use"), error.getMessage());
    }

    @Test
    void theSameRowsHaveTheSameFingerprint() throws IOException {
        String first = examples(file(rows(3)), "seq-cls", false).fingerprint();
        assertEquals(first, examples(file("\n" + rows(3)), "seq-cls", false).fingerprint());
        assertEquals(32, first.length());
        assertTrue(!first.equals(examples(file(rows(4)), "seq-cls", false).fingerprint()));
    }

    @Test
    void whatIsNoFileIsSaid() throws IOException {
        File nothing = folder.resolve("nothing").toFile();
        assertThrows(DataException.class, () -> new JsonlSource(nothing));
        assertThrows(DataException.class, () -> new JsonlSource(folder.toFile()));
        DataException error =
                assertThrows(DataException.class, () -> examples(file("\n\n"), "seq-cls", false));
        assertTrue(error.getMessage().endsWith("has no example; it is empty"), error.getMessage());
    }
}
