package dev.spry.core.data;

import java.io.File;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.DataException;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.text.Tokenizer;

/**
 * Reads rows of a language model for a comparison with Python: `ConversationsMain LENGTH FOLDER…`.
 *
 * <p>Each folder is a bundle without programs, with rows.jsonl. A line of standard output is of a row: its tokens and
 * labels, or why it cannot be used.
 */
final class ConversationsMain {
    private ConversationsMain() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        int length = Integer.parseInt(arguments[0]);
        for (String name : Arrays.asList(arguments).subList(1, arguments.length)) {
            File folder = new File(name);
            Bundle bundle = new Bundle(folder, Manifest.read(new File(folder, Manifest.FILE_NAME)));
            Encoder encoder = new Encoder(Tokenizer.read(bundle.tokenizer()), bundle.manifest, 1, length);
            FileSource source = FileSource.of(new File(folder, "rows.jsonl"));
            for (long at : places(source)) {
                out.println(read(new Only(source, at), bundle, encoder));
            }
        }
        out.flush();
    }

    private static JSONObject read(Source row, Bundle bundle, Encoder encoder) throws Exception {
        try {
            Encoded found = encoder.encode(Examples.of(row, bundle, false).get(new int[] {0}, 0, 1));
            int count = found.encodings.get(0).size();
            return new JSONObject().put("ids", numbers(found.tokens.get("input_ids").longs(), count))
                    .put("labels", numbers(found.labels.longs(), count));
        } catch (DataException error) {
            return new JSONObject().put("refused", error.getMessage());
        }
    }

    private static JSONArray numbers(long[] values, int count) throws JSONException {
        JSONArray result = new JSONArray();
        for (int i = 0; i < count; i++) {
            result.put(values[i]);
        }
        return result;
    }

    private static List<Long> places(Source source) throws Exception {
        List<Long> found = new ArrayList<>();
        source.rows((place, at, row, problem) -> found.add(at));
        return found;
    }

    /** One row of a file. */
    private static final class Only implements Source {
        private final Source source;
        private final long at;

        Only(Source source, long at) {
            this.source = source;
            this.at = at;
        }

        @Override
        public String name() {
            return source.name();
        }

        @Override
        public void rows(Rows rows) throws java.io.IOException {
            rows.row("the row", at, row(at), null);
        }

        @Override
        public JSONObject row(long place) throws java.io.IOException {
            return source.row(place);
        }

        @Override
        public Object stamp() {
            return Collections.emptyList();
        }
    }
}
