package dev.spry.core.data;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.RandomAccessFile;
import java.nio.file.Files;

import org.json.JSONObject;

/** A JSON object on each line of a file. A line has a bounded length, so that no file can fill the memory. */
public final class JsonlSource extends FileSource {
    public JsonlSource(File path) {
        super(path);
    }

    @Override
    public void rows(Rows rows) throws IOException {
        try (InputStream file = new BufferedInputStream(Files.newInputStream(path.toPath()), 1 << 16)) {
            Line line = new Line();
            long at = 0;
            for (int number = 1; line.read(file); number++) {
                byte[] value = line.bytes();
                if (!isBlank(value)) {
                    tell(rows, "line " + number, at, value);
                }
                at += line.length;
            }
        }
    }

    @Override
    public JSONObject row(long at) throws IOException {
        try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
            file.seek(at);
            byte[] data = new byte[4096];
            Line line = new Line();
            int count;
            while ((count = file.read(data)) > 0 && !line.take(data, count)) {
                data = new byte[Math.min(2 * data.length, LONGEST)];
            }
            return object(line.bytes());
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
            return kept.size() > LONGEST;
        }

        /** True at the line's end. */
        private boolean add(byte one) {
            length++;
            if (one != '\n' && kept.size() <= LONGEST) {
                kept.write(one);
            }
            return one == '\n';
        }

        byte[] bytes() {
            return kept.toByteArray();
        }
    }
}
