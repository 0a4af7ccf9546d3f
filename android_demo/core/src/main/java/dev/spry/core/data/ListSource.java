package dev.spry.core.data;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;

import org.json.JSONObject;

/** A JSON list of objects in a file. */
public final class ListSource extends FileSource {
    public ListSource(File path) {
        super(path);
    }

    @Override
    public void rows(Rows rows) throws IOException {
        try (InputStream file = new BufferedInputStream(Files.newInputStream(path.toPath()), 1 << 16)) {
            Values values = new Values(file, 0, 0);
            int number = 0;
            while (values.next()) {
                byte[] value = values.bytes();
                if (!isBlank(value)) {
                    number++;
                    tell(rows, "row " + number, values.begun, value);
                }
            }
            if (!values.closed) {
                rows.row("the end", values.begun, null, "nothing closes the list: the file may be cut off");
            }
        }
    }

    @Override
    public JSONObject row(long at) throws IOException {
        try (InputStream file = new BufferedInputStream(Files.newInputStream(path.toPath()))) {
            for (long left = at; left > 0; ) {
                long passed = file.skip(left);
                if (passed <= 0) {
                    throw new IOException("has no byte " + at);
                }
                left -= passed;
            }
            Values values = new Values(file, at, 1);
            values.next();
            return object(values.bytes());
        } catch (BadRow bad) {
            throw new IOException(bad.getMessage());
        }
    }

    /** A list's values, told apart by the marks that stand in no text; whether one is JSON is for who reads it. */
    private static final class Values {
        private final InputStream file;
        private final ByteArrayOutputStream kept = new ByteArrayOutputStream();
        private long at;
        private int depth;
        private boolean quoted;
        private boolean escaped;
        /** Where the value begins. */
        long begun;
        /** Whether all lists have ended that began. */
        boolean closed;

        Values(InputStream file, long at, int depth) {
            this.file = file;
            this.at = at;
            this.depth = depth;
        }

        /** Reads up to the next value's end; false after the last. */
        boolean next() throws IOException {
            kept.reset();
            begun = at;
            for (int one = file.read(); one >= 0; one = file.read()) {
                at++;
                if (ends(one)) {
                    return true;
                }
                if (depth == 1 && !quoted && one == '[') { // the list's own
                    kept.reset();
                    begun = at;
                } else if (depth > 0 && kept.size() <= LONGEST) {
                    kept.write(one);
                }
            }
            closed = depth == 0;
            return kept.size() > 0;
        }

        byte[] bytes() {
            return kept.toByteArray();
        }

        /** Whether a value ends before this byte. */
        private boolean ends(int one) {
            boolean plain = !escaped;
            escaped = quoted && plain && one == '\\';
            if (one == '"' && plain) {
                quoted = !quoted;
            }
            if (quoted) {
                return false;
            }
            boolean end = depth == 1 && (one == ',' || one == ']' || one == '}');
            if (one == '[' || one == '{') {
                depth++;
            } else if (one == ']' || one == '}') {
                depth--;
            }
            return end;
        }
    }
}
