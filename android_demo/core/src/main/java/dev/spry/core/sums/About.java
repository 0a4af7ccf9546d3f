package dev.spry.core.sums;

/** Which sum, and this device's place in it. */
public final class About {
    public final String job;
    public final int round;
    public final int place;
    /** What is added of the task's, which all of a team hold. */
    public final int[] units;
    /** Devices of whose parts a sum is opened. */
    public final int least;
    /** Of the noise that is added in it; none without. */
    final byte[] terms;

    public About(String job, int round, int place, int[] units, int least, byte[] terms) {
        this.job = job;
        this.round = round;
        this.place = place;
        this.units = units.clone();
        this.least = least;
        this.terms = terms.clone();
    }
}
