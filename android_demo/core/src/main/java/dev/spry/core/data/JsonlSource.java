package dev.spry.core.data;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Locale;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.DataException;

/** A JSON object on each line of a file. A line has a bounded length, so that no file can fill the memory. */
public final class JsonlSource implements Source {
    /** Bytes; a model reads a few thousand at most. */
    public static final int LONGEST_LINE = 1 << 20;

    private final File path;

    public JsonlSource(File path) {
        if (!path.isFile()) {
            String what = path.exists() ? "is not a file" : "does not exist";
            throw new DataException(path + " " + what + "; give a .jsonl file with a row for each example");
        }
        this.path = path;
    }

    @Override
    public String name() {
        return path.toString();
    }

    @Override
    public Object stamp() {
        return Arrays.asList(path.lastModified(), path.length());
    }

    @Override
    public void rows(Rows rows) throws IOException {
        try (InputStream file = new BufferedInputStream(Files.newInputStream(path.toPath()), 1 << 16)) {
            Line line = new Line();
            long at = 0;
            for (int number = 1; line.read(file); number++) {
                if (!line.isBlank()) {
                    told(rows, "line " + number, at, line);
                }
                at += line.length;
            }
        }
    }

    private static void told(Rows rows, String place, long at, Line line) {
        JSONObject row = null;
        String problem = null;
        try {
            row = line.object();
        } catch (BadRow bad) {
            problem = bad.getMessage();
        }
        rows.row(place, at, row, problem);
    }

    @Override
    public JSONObject row(long at) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
            file.seek(at);
            byte[] data = new byte[4096];
            Line line = new Line();
            int count;
            while ((count = file.read(data)) > 0 && !line.take(data, count)) {
                data = new byte[Math.min(2 * data.length, LONGEST_LINE)];
            }
            return line.object();
        } catch (BadRow bad) {
            throw new IOException(bad.getMessage());
        }
    }

    /** The bytes up to the end of a line. */
    private static final class Line {
        private final ByteArrayOutputStream kept = new ByteArrayOutputStream();
        /** Of the line in the file, its end included. */
        long length;

        boolean read(InputStream file) throws IOException {
            kept.reset();
            length = 0;
            for (int one = file.read(); one >= 0; one = file.read()) {
                if (add((byte) one)) {
                    return true;
                }
            }
            return length > 0;
        }

        boolean take(byte[] data, int count) {
            for (int i = 0; i < count; i++) {
                if (add(data[i])) {
                    return true;
                }
            }
            return kept.size() > LONGEST_LINE;
        }

        /** True at the line's end. */
        private boolean add(byte one) {
            length++;
            if (one != '\n' && kept.size() <= LONGEST_LINE) {
                kept.write(one);
            }
            return one == '\n';
        }

        boolean isBlank() {
            for (byte one : kept.toByteArray()) {
                if (one != ' ' && one != '\t' && one != '\r') {
                    return false;
                }
            }
            return true;
        }

        JSONObject object() throws BadRow {
            if (kept.size() > LONGEST_LINE) {
                throw new BadRow(String.format(Locale.ROOT, "is longer than %,d bytes", LONGEST_LINE));
            }
            String text = text().trim();
            text = text.startsWith("\uFEFF") ? text.substring(1).trim() : text;
            if (!text.startsWith("{") || !text.endsWith("}")) {
                throw new BadRow("is not JSON, or not an object such as {\"text\": ..., \"label\": ...}");
            }
            try {
                return new JSONObject(text);
            } catch (JSONException | StackOverflowError error) {
                throw new BadRow("is not JSON: " + (error instanceof JSONException ? error.getMessage() : "too deep"));
            }
        }

        private String text() throws BadRow {
            try {
                return StandardCharsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT)
                        .decode(ByteBuffer.wrap(kept.toByteArray())).toString();
            } catch (CharacterCodingException error) {
                throw new BadRow("is not UTF-8");
            }
        }
    }
}
