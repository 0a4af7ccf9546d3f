package dev.spry.core.sums;

/** A device that another shares masks with. */
final class Peer {
    final int place;
    /** Of the same team: it holds the same units, and shares of the other's secrets. */
    final boolean isMate;
    final byte[] identity;
    /** Its key of the round. */
    final byte[] mask;
    /** Of one that is of another team. */
    final int[] units;

    Peer(Reader reader, boolean isMate) {
        this.isMate = isMate;
        place = reader.two();
        identity = reader.take(Streams.KEY);
        mask = reader.take(Streams.KEY);
        units = new int[isMate ? 0 : reader.two()];
        for (int at = 0; at < units.length; at++) {
            units[at] = reader.two();
        }
    }

    /** Its place as a point of shares. */
    int point() {
        return place + 1;
    }
}
