package dev.spry.app;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;

import org.json.JSONException;
import org.json.JSONObject;

import android.content.Context;
import android.net.Uri;
import dev.spry.core.DataException;
import dev.spry.core.data.Examples;
import dev.spry.core.data.FileSource;
import dev.spry.core.data.JsonlSource;
import dev.spry.core.data.ListSource;
import dev.spry.core.data.Source;

/** The examples on this phone: a JSON object on each line of a file that only this app can read. */
final class LocalData {
    private static final Object WRITING = new Object();

    private final Context context;
    private final File file;

    LocalData(Context context) {
        this.context = context;
        file = new File(context.getFilesDir(), "examples.jsonl");
    }

    Source source() {
        if (!file.isFile()) {
            throw new DataException("there are no examples on this phone: keep some, or take them from a file");
        }
        return new JsonlSource(file);
    }

    int count() throws IOException {
        return file.isFile() ? Examples.count(new JsonlSource(file), true) : 0;
    }

    void add(String text, String label) throws IOException {
        String line;
        try {
            line = new JSONObject().put("text", text).put("label", label) + "\n";
        } catch (JSONException error) {
            throw new AssertionError(error); // they are texts
        }
        synchronized (WRITING) {
            try (FileOutputStream out = new FileOutputStream(file, true)) {
                out.write(line.getBytes(StandardCharsets.UTF_8));
                out.getFD().sync();
            }
        }
    }

    /** Takes the rows of a document in place of those there are; as a whole, or not at all. */
    void replace(Uri document) throws IOException {
        File beside = new File(file.getPath() + ".new");
        try (InputStream in = context.getContentResolver().openInputStream(document);
                OutputStream out = new FileOutputStream(beside)) {
            if (in == null) {
                throw new IOException("the file cannot be opened");
            }
            byte[] part = new byte[1 << 16];
            for (int count = in.read(part); count >= 0; count = in.read(part)) {
                out.write(part, 0, count);
            }
        }
        Source given = FileSource.of(beside);
        if (Examples.count(given, true) == 0) {
            throw new DataException("the file has no example: it must have a JSON object on each line, "
                    + "such as {\"text\": \"...\", \"label\": \"...\"}");
        }
        if (given instanceof ListSource) {
            File lines = inLines(given);
            if (!lines.renameTo(beside)) {
                throw new IOException("the rows cannot be moved to their place");
            }
        }
        synchronized (WRITING) {
            if (!beside.renameTo(file)) {
                throw new IOException("the file cannot be moved to its place");
            }
        }
    }

    /** A list's rows as lines, to which others may be added. */
    private File inLines(Source list) throws IOException {
        Examples.count(list, false); // what of it cannot be read is told, with its place
        File written = new File(file.getPath() + ".lines");
        try (FileOutputStream out = new FileOutputStream(written);
                PrintWriter lines = new PrintWriter(new OutputStreamWriter(out, StandardCharsets.UTF_8))) {
            list.rows((place, at, row, problem) -> lines.append(row.toString()).append('\n'));
            if (lines.checkError()) {
                throw new IOException("the rows cannot be written; is there room?");
            }
            out.getFD().sync();
        }
        return written;
    }
}
