package dev.spry.core.data;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

import org.json.JSONObject;

import dev.spry.core.DataException;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Model;

/**
 * A device's training data as examples of a task.
 *
 * <p>Rows are checked once for each job and then read again as training needs them: what stays in memory is where each
 * row starts, and a few bytes of its hash.
 */
public final class Examples {
    /** Bad rows that are told one by one. */
    private static final int SHOWN = 3;

    /** What was left out, in words; null where nothing was. */
    public final String skipped;

    private final Source source;
    private final Rows rows;
    private final long[] places;
    private final long[] digests;

    private Examples(Source source, Rows rows, long[] places, long[] digests, String skipped) {
        this.source = source;
        this.rows = rows;
        this.places = places;
        this.digests = digests;
        this.skipped = skipped;
    }

    /** The rows as examples of a bundle's task; `skip` leaves out those that cannot be used; else the first is an error. */
    public static Examples of(Source source, Bundle bundle, boolean skip) throws IOException {
        Model model = bundle.manifest.model;
        return of(source, new Rows(model.task, model.labels, Template.of(bundle)), skip);
    }

    static Examples of(Source source, Rows rows, boolean skip) throws IOException {
        Checked checked = new Checked(rows, source.name(), skip);
        source.rows(checked);
        if (checked.places.isEmpty()) {
            String all = ": all " + checked.bad + " rows were left out (" + checked.told() + ")";
            throw new DataException(source.name() + " has no example" + (checked.bad > 0 ? all : "; it is empty"));
        }
        return new Examples(source, checked.rows, longs(checked.places), longs(checked.digests), checked.told());
    }

    /** How many rows can be read, whatever task they are for. */
    public static int count(Source source, boolean skip) throws IOException {
        int[] count = {0};
        source.rows((place, at, row, problem) -> {
            if (row == null && !skip) {
                throw bad(source.name(), place, problem);
            }
            count[0] += row == null ? 0 : 1;
        });
        return count[0];
    }

    public int size() {
        return places.length;
    }

    public Example get(int index) throws IOException {
        try {
            JSONObject row = source.row(places[index]);
            if (digest(row) == digests[index]) {
                return rows.example(row);
            }
        } catch (BadRow | IOException changed) {
            // told below: the file is not what it was
        }
        throw new DataException(
                source.name() + " changed while it was in use; run again, and replace files as a whole");
    }

    /** Some of the rows, by their numbers. */
    public List<Example> get(int[] indices, int from, int to) throws IOException {
        List<Example> found = new ArrayList<>(to - from);
        for (int i = from; i < to; i++) {
            found.add(get(indices[i]));
        }
        return found;
    }

    /** The same for the same rows in the same order. */
    public String fingerprint() {
        ByteBuffer bytes = ByteBuffer.allocate(8 * digests.length);
        bytes.asLongBuffer().put(digests);
        StringBuilder result = new StringBuilder();
        byte[] hash = sha256(bytes.array());
        for (int i = 0; i < 16; i++) {
            result.append(String.format("%02x", hash[i]));
        }
        return result.toString();
    }

    /**
     * The rows to train on and those held back: a row's content decides, wherever it stands and whatever is added.
     *
     * <p>Of two rows or more, each part has at least one.
     */
    public Examples[] split(double holdout, long seed) {
        if (!(holdout >= 0 && holdout < 1)) {
            throw new DataException("the share held back must be from 0 to less than 1, got " + holdout);
        }
        double[] ranks = new double[size()];
        boolean[] held = new boolean[size()];
        int least = 0;
        int most = 0;
        for (int i = 0; i < ranks.length; i++) {
            ranks[i] = rank(digests[i], seed);
            held[i] = ranks[i] < holdout;
            least = ranks[i] < ranks[least] ? i : least;
            most = ranks[i] > ranks[most] ? i : most;
        }
        if (holdout > 0 && ranks.length > 1) {
            held[least] = true;
            held[most] = false;
        }
        return new Examples[] {part(held, false), part(held, true)};
    }

    private Examples part(boolean[] held, boolean wanted) {
        long[] somePlaces = new long[held.length];
        long[] someDigests = new long[held.length];
        int count = 0;
        for (int i = 0; i < held.length; i++) {
            if (held[i] == wanted) {
                somePlaces[count] = places[i];
                someDigests[count++] = digests[i];
            }
        }
        return new Examples(source, rows, Arrays.copyOf(somePlaces, count), Arrays.copyOf(someDigests, count), skipped);
    }

    /** A number from 0 to less than 1. */
    private static double rank(long digest, long seed) {
        byte[] hash = sha256(ByteBuffer.allocate(16).putLong(digest).putLong(seed).array());
        return (ByteBuffer.wrap(hash).getLong() >>> 16) / (double) (1L << 48);
    }

    /** 64 bits of a row's content. */
    private static long digest(JSONObject row) {
        List<String> names = new ArrayList<>();
        for (Iterator<String> all = row.keys(); all.hasNext(); ) {
            String name = all.next();
            if (!row.isNull(name)) {
                names.add(name);
            }
        }
        Collections.sort(names);
        StringBuilder content = new StringBuilder();
        for (String name : names) {
            String value = row.opt(name).toString();
            content.append(JSONObject.quote(name)).append(':').append(JSONObject.quote(value)).append(',');
        }
        return ByteBuffer.wrap(sha256(content.toString().getBytes(StandardCharsets.UTF_8))).getLong();
    }

    private static byte[] sha256(byte[] data) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(data);
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError(impossible); // every Java and every Android has it
        }
    }

    private static long[] longs(List<Long> values) {
        long[] result = new long[values.size()];
        for (int i = 0; i < result.length; i++) {
            result[i] = values.get(i);
        }
        return result;
    }

    private static DataException bad(String source, String place, String problem) {
        return new DataException(source + ", " + place + ": " + problem + "; correct the row, or leave bad rows out");
    }

    /** Gathers the rows that fit a task. */
    private static final class Checked implements Source.Rows {
        final Rows rows;
        final List<Long> places = new ArrayList<>();
        final List<Long> digests = new ArrayList<>();
        int bad;
        private final String source;
        private final boolean skip;
        private final List<String> first = new ArrayList<>();

        Checked(Rows rows, String source, boolean skip) {
            this.rows = rows;
            this.source = source;
            this.skip = skip;
        }

        @Override
        public void row(String place, long at, JSONObject row, String broken) {
            String problem = broken;
            try {
                if (row != null) {
                    rows.example(row);
                    places.add(at);
                    digests.add(digest(row));
                    return;
                }
            } catch (BadRow error) {
                problem = error.getMessage();
            }
            if (!skip) {
                throw bad(source, place, problem);
            }
            bad++;
            if (first.size() < SHOWN) {
                first.add(place + ": " + problem);
            }
        }

        String told() {
            if (bad == 0) {
                return null;
            }
            String more = bad > first.size() ? "; and " + (bad - first.size()) + " more" : "";
            return String.join("; ", first) + more;
        }
    }
}
