package dev.spry.core;

import java.util.Calendar;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A part of the day by the device's clock, which may go across midnight. */
public final class Hours {
    private static final Pattern WRITTEN =
            Pattern.compile("\\s*(\\d{1,2})(?::(\\d{2}))?\\s*-\\s*(\\d{1,2})(?::(\\d{2}))?\\s*");
    private static final int DAY = 24 * 3600;

    private final int start;
    private final int end;

    private Hours(int start, int end) {
        this.start = start;
        this.end = end;
    }

    /** `22-6` or `22:30-6:15`. */
    public static Hours parse(String text) {
        Matcher found = WRITTEN.matcher(text);
        if (!found.matches()) {
            throw wrong(text);
        }
        Hours hours = new Hours(time(found, 1, text), time(found, 3, text));
        if (hours.start == hours.end) {
            throw new SpryException("hours '" + text + "' begin when they end; leave them out for the whole day");
        }
        return hours;
    }

    private static int time(Matcher found, int group, String text) {
        int hour = Integer.parseInt(found.group(group));
        int minute = found.group(group + 1) == null ? 0 : Integer.parseInt(found.group(group + 1));
        if (hour == 24 && minute == 0) {
            return 0;
        }
        if (hour > 23 || minute > 59) {
            throw wrong(text);
        }
        return hour * 3600 + minute * 60;
    }

    private static SpryException wrong(String text) {
        return new SpryException("hours must look like 22-6 or 22:30-6:15, got '" + text + "'");
    }

    boolean contain(Calendar now) {
        int moment = seconds(now);
        return start < end ? start <= moment && moment < end : moment >= start || moment < end;
    }

    /** Seconds until they begin. */
    double until(Calendar now) {
        return Math.floorMod(start - seconds(now), DAY);
    }

    private static int seconds(Calendar now) {
        return now.get(Calendar.HOUR_OF_DAY) * 3600 + now.get(Calendar.MINUTE) * 60 + now.get(Calendar.SECOND);
    }

    @Override
    public String toString() {
        return String.format(Locale.ROOT, "%02d:%02d-%02d:%02d",
                start / 3600, start / 60 % 60, end / 3600, end / 60 % 60);
    }
}
