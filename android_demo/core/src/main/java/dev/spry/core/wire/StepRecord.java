package dev.spry.core.wire;

import java.util.List;

/** A step of all participants, as the server publishes it: it leads from version - 1 to version. */
public final class StepRecord {
    public final int version;
    public final int round;
    public final int iteration;
    public final List<Participant> participants;
    /** The weighted mean of the head's gradients, where those are exact; else null. */
    public final float[] headGradient;

    StepRecord(int version, int round, int iteration, List<Participant> participants, float[] headGradient) {
        this.version = version;
        this.round = round;
        this.iteration = iteration;
        this.participants = participants;
        this.headGradient = headGradient;
    }

    /** A report as published. */
    public static final class Participant {
        public final long seed;
        public final int[] units;
        public final ScalarReport report;

        Participant(long seed, int[] units, ScalarReport report) {
            this.seed = seed;
            this.units = units;
            this.report = report;
        }
    }
}
