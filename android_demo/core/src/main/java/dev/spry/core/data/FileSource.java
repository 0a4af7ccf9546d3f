package dev.spry.core.data;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.DataException;

/** Rows in a file. Each has a bounded length, so that no file can fill the memory. */
public abstract class FileSource implements Source {
    /** Bytes of a row; a model reads a few thousand at most. */
    public static final int LONGEST = 1 << 20;

    protected final File path;

    protected FileSource(File path) {
        if (!path.isFile()) {
            String what = path.exists() ? "is not a file" : "does not exist";
            throw new DataException(path + " " + what + "; give a .jsonl file with a row for each example");
        }
        this.path = path;
    }

    /** Of a list, where the file begins one, and of lines else. */
    public static FileSource of(File path) {
        FileSource lines = new JsonlSource(path);
        byte[] begin = new byte[1 << 16];
        int count;
        try (InputStream file = new FileInputStream(path)) {
            count = Math.max(file.read(begin), 0);
        } catch (IOException error) {
            throw new DataException(path + " cannot be read: " + error.getMessage());
        }
        String text = new String(begin, 0, count, StandardCharsets.ISO_8859_1);
        text = text.startsWith("\u00EF\u00BB\u00BF") ? text.substring(3) : text;
        return text.trim().startsWith("[") ? new ListSource(path) : lines;
    }

    @Override
    public String name() {
        return path.toString();
    }

    @Override
    public Object stamp() {
        return Arrays.asList(path.lastModified(), path.length());
    }

    static void tell(Rows rows, String place, long at, byte[] value) {
        JSONObject row = null;
        String problem = null;
        try {
            row = object(value);
        } catch (BadRow bad) {
            problem = bad.getMessage();
        }
        rows.row(place, at, row, problem);
    }

    static boolean isBlank(byte[] value) {
        for (byte one : value) {
            if (one != ' ' && one != '\t' && one != '\r' && one != '\n') {
                return false;
            }
        }
        return true;
    }

    static JSONObject object(byte[] value) throws BadRow {
        if (value.length > LONGEST) {
            throw new BadRow(String.format(Locale.ROOT, "is longer than %,d bytes", LONGEST));
        }
        String text = text(value).trim();
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

    private static String text(byte[] value) throws BadRow {
        try {
            return StandardCharsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT)
                    .decode(ByteBuffer.wrap(value)).toString();
        } catch (CharacterCodingException error) {
            throw new BadRow("is not UTF-8");
        }
    }
}
