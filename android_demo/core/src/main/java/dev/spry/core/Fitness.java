package dev.spry.core;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import dev.spry.core.wire.OpenJob;
import dev.spry.core.wire.Server;

/** What jobs ask of this device's rows: looked at before it takes a place, and again when the rows have changed. */
final class Fitness {
    private static final int LONGEST_REASON = 300;
    /** That a check-in names. */
    private static final int MOST_JOBS = 20;

    private final OwnData data;
    private final String job;
    private final Tell tell;
    private Object stamp;
    private List<OpenJob> open;
    private Map<String, String> unfit = Collections.emptyMap();

    /** `job` is the only one to take part in, by id or name; null for any. */
    Fitness(OwnData data, String job, Tell tell) {
        this.data = data;
        this.job = job;
        this.tell = tell;
    }

    /** Whether there are jobs, and the rows fit none of them. */
    boolean fitsNone() {
        return open != null && !open.isEmpty() && unfit.size() == open.size();
    }

    /** By the id of a job that the rows do not fit, why. */
    Map<String, String> look(Server server) throws IOException {
        Object now = data.stamp();
        if (open != null && now.equals(stamp)) {
            return unfit;
        }
        List<OpenJob> found = new ArrayList<>();
        for (OpenJob one : server.openJobs()) {
            if (job == null || job.equals(one.job) || job.equals(one.jobName)) {
                found.add(one);
            }
        }
        Map<String, String> misfits = new LinkedHashMap<>();
        for (OpenJob one : found.subList(0, Math.min(MOST_JOBS, found.size()))) {
            String why = inOneLine(data.misfit(one.task, one.labels));
            if (!why.isEmpty()) {
                misfits.put(one.job, why);
                String known = one.labels.isEmpty() ? "" : "; its labels are " + shortened(String.join(", ", one.labels));
                tell.tell(Event.of("warning", "these rows do not fit " + one.jobName + ": " + why + known));
            }
        }
        stamp = now;
        open = found;
        unfit = misfits;
        return unfit;
    }

    /** A text that a server takes: what a row holds may be anything. */
    private static String inOneLine(String text) {
        StringBuilder line = new StringBuilder();
        text.codePoints().limit(LONGEST_REASON).forEach(one -> line.appendCodePoint(isPrintable(one) ? one : '?'));
        return line.toString();
    }

    private static boolean isPrintable(int one) {
        switch (Character.getType(one)) {
            case Character.CONTROL:
            case Character.FORMAT:
            case Character.SURROGATE:
            case Character.PRIVATE_USE:
            case Character.UNASSIGNED:
            case Character.LINE_SEPARATOR:
            case Character.PARAGRAPH_SEPARATOR:
                return false;
            case Character.SPACE_SEPARATOR:
                return one == ' ';
            default:
                return true;
        }
    }

    private static String shortened(String text) {
        return text.length() > LONGEST_REASON ? text.substring(0, LONGEST_REASON) : text;
    }
}
