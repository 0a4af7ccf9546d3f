package dev.spry.core.data;

import java.io.IOException;

import org.json.JSONObject;

/** Where rows come from. */
public interface Source {
    /** What messages call it. */
    String name();

    /** Goes through all rows. */
    void rows(Rows rows) throws IOException;

    /** A row again, by the place that `rows` gave. */
    JSONObject row(long at) throws IOException;

    /** Another value when the rows may have changed. */
    Object stamp();

    /** Hears of each row: the row, or why it cannot be read. */
    interface Rows {
        void row(String place, long at, JSONObject row, String problem);
    }
}
