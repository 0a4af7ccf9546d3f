package dev.spry.core.sums;

/** How many witnesses must have signed who is in a sum, as edge_client/sums/quorum.py has it. */
final class Quorum {
    /** Of a sum at most. */
    private static final int WITNESSES = 26;
    private static final int OF_MOST = 15;

    private Quorum() {}

    static int witnesses(int devices) {
        return Math.min(devices, WITNESSES);
    }

    static int of(int witnesses) {
        return witnesses < WITNESSES ? witnesses - 3 * witnesses / 10 : OF_MOST;
    }
}
