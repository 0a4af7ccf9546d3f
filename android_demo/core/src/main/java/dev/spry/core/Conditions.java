package dev.spry.core;

import java.util.Calendar;

/** When a device takes part: its user's conditions, asked before every check-in. */
public final class Conditions {
    private static final double LOOK_AGAIN = 60;

    private final Machine machine;
    private boolean onlyCharging;
    private boolean unmeteredOnly;
    private long maxMemory = Long.MAX_VALUE;
    private boolean lowMemory;
    private Hours hours;

    public Conditions(Machine machine) {
        this.machine = machine;
    }

    public Conditions onlyCharging(boolean wanted) {
        onlyCharging = wanted;
        return this;
    }

    public Conditions unmeteredOnly(boolean wanted) {
        unmeteredOnly = wanted;
        return this;
    }

    /** Bytes that training may take. */
    public Conditions maxMemory(long bytes) {
        maxMemory = bytes;
        return this;
    }

    /** Hold one program at a time, which is slower; so it is anyway where there is no room for all. */
    public Conditions lowMemory(boolean wanted) {
        lowMemory = wanted;
        return this;
    }

    /** null for the whole day. */
    public Conditions hours(Hours wanted) {
        hours = wanted;
        return this;
    }

    /** Why a device does not take part now, and after how many seconds to look again. */
    public static final class Refusal {
        public final String reason;
        public final double seconds;

        Refusal(String reason, double seconds) {
            this.reason = reason;
            this.seconds = seconds;
        }
    }

    /** null where nothing is in the way. */
    public Refusal refusal(Calendar now) {
        if (hours != null && !hours.contain(now)) {
            return new Refusal("it is outside the hours " + hours, hours.until(now));
        }
        if (onlyCharging && !power().equals("mains")) {
            String what = power().equals("battery")
                    ? "the device runs on battery" : "the system does not tell its power source";
            return new Refusal(what + ", and this device is to take part while charging only", LOOK_AGAIN);
        }
        if (unmeteredOnly && metered()) {
            return new Refusal(
                    "the network is metered, and this device is to take part on unmetered ones only", LOOK_AGAIN);
        }
        return null;
    }

    String power() {
        return machine.power();
    }

    /** A network that nobody knows to be free of charge is taken for one that is metered. */
    boolean metered() {
        Boolean found = machine.metered();
        return found == null ? unmeteredOnly : found;
    }

    boolean lowMemory() {
        return lowMemory;
    }

    /** The bytes that training may take now; null where neither user nor system says. */
    Long memory() {
        Long free = machine.freeMemory();
        if (free == null) {
            return maxMemory == Long.MAX_VALUE ? null : (Long) maxMemory;
        }
        return Math.min(free, maxMemory);
    }
}
