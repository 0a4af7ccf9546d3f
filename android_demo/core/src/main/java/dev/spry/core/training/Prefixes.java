package dev.spry.core.training;

import java.util.HashMap;
import java.util.Map;

import dev.spry.core.Tensor;

/** Hidden states that enter the cut, kept for each piece of a batch up to a number of bytes. */
public final class Prefixes {
    private final long limit;
    private long bytes;
    private final Map<String, Tensor> kept = new HashMap<>();

    Prefixes(long limit) {
        this.limit = limit;
    }

    Tensor get(String piece) {
        return kept.get(piece);
    }

    void keep(String piece, Tensor hidden) {
        long more = 4L * hidden.size();
        if (bytes + more <= limit) {
            kept.put(piece, hidden);
            bytes += more;
        }
    }

    public void clear() {
        kept.clear();
        bytes = 0;
    }
}
