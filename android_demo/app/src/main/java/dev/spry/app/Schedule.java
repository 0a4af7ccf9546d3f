package dev.spry.app;

import java.util.ArrayList;
import java.util.List;

import android.app.job.JobInfo;
import android.app.job.JobScheduler;
import android.content.ComponentName;
import android.content.Context;
import android.text.TextUtils;

/** When the system wakes this app to look for a round. */
final class Schedule {
    private static final int REGULAR = 1;
    private static final int NOW = 2;
    private static final long PERIOD = 15 * 60 * 1000L;
    private static final long BACK_OFF = 30 * 1000L;

    private final Context context;
    private final Settings settings;
    private final JobScheduler jobs;

    Schedule(Context context) {
        this.context = context;
        settings = new Settings(context);
        jobs = (JobScheduler) context.getSystemService(Context.JOB_SCHEDULER_SERVICE);
    }

    /** Make the plan fit the settings; a run that is under way ends when it does not fit any more. */
    void refresh() {
        jobs.cancel(REGULAR);
        if (!settings.takesPart()) {
            jobs.cancel(NOW);
            return;
        }
        jobs.schedule(job(REGULAR).setPeriodic(PERIOD).setPersisted(true)
                .setRequiresDeviceIdle(settings.isOn(Settings.IDLE)).build());
    }

    /** Plan again where the system has forgotten it, as it does when the user ends an app for good. */
    void ensure() {
        if (settings.takesPart() && jobs.getAllPendingJobs().isEmpty()) {
            refresh();
        }
    }

    /** Look at once, whether the phone lies unused or not. */
    void now() {
        jobs.schedule(job(NOW).setBackoffCriteria(BACK_OFF, JobInfo.BACKOFF_POLICY_EXPONENTIAL).build());
    }

    private JobInfo.Builder job(int id) {
        boolean unmetered = settings.isOn(Settings.UNMETERED);
        return new JobInfo.Builder(id, new ComponentName(context, RoundService.class))
                .setRequiresCharging(settings.isOn(Settings.CHARGING))
                .setRequiredNetworkType(unmetered ? JobInfo.NETWORK_TYPE_UNMETERED : JobInfo.NETWORK_TYPE_ANY);
    }

    /** What a regular look waits for, in words. */
    String conditions() {
        List<String> found = new ArrayList<>();
        if (settings.isOn(Settings.CHARGING)) {
            found.add(context.getString(R.string.condition_charging));
        }
        boolean unmetered = settings.isOn(Settings.UNMETERED);
        found.add(context.getString(unmetered ? R.string.condition_unmetered : R.string.condition_network));
        if (settings.isOn(Settings.IDLE)) {
            found.add(context.getString(R.string.condition_idle));
        }
        return TextUtils.join(", ", found);
    }
}
