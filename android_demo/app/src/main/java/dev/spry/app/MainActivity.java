package dev.spry.app;

import java.io.IOException;

import org.json.JSONArray;
import org.json.JSONObject;

import android.app.Activity;
import android.content.ActivityNotFoundException;
import android.content.Intent;
import android.content.SharedPreferences;
import android.content.pm.PackageManager;
import android.os.Build;
import android.os.Bundle;
import android.view.View;
import android.widget.EditText;
import android.widget.ProgressBar;
import android.widget.Switch;
import android.widget.TextView;
import android.widget.Toast;
import dev.spry.core.Invitation;
import dev.spry.core.SpryException;

/** The one screen. All that it shows is kept elsewhere, so that it may be turned, left and ended at any moment. */
public final class MainActivity extends Activity implements SharedPreferences.OnSharedPreferenceChangeListener {
    private static final int FILE = 1;
    private static final int NOTICES = 2;
    private static final int WITH_NOTICE_PERMISSION = 33;
    private static final String MAY_NOTIFY = "android.permission.POST_NOTIFICATIONS";
    private static final int LEAST_MEMORY = 50;

    private Settings settings;
    private Schedule schedule;
    private Journal journal;
    private LocalData data;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        setContentView(R.layout.main);
        settings = new Settings(this);
        schedule = new Schedule(this);
        journal = new Journal(this);
        data = new LocalData(this);
        field(R.id.server).setText(settings.server());
        field(R.id.token).setText(settings.token());
        field(R.id.name).setText(settings.name());
        field(R.id.memory).setText(String.valueOf(settings.megabytes()));
        bind(R.id.consent, Settings.CONSENT);
        bind(R.id.paused, Settings.PAUSED);
        bind(R.id.only_charging, Settings.CHARGING);
        bind(R.id.only_unmetered, Settings.UNMETERED);
        bind(R.id.only_idle, Settings.IDLE);
        findViewById(R.id.save).setOnClickListener(view -> save());
        findViewById(R.id.now).setOnClickListener(view -> lookNow());
        findViewById(R.id.classify).setOnClickListener(view -> classify());
        findViewById(R.id.keep).setOnClickListener(view -> keep());
        findViewById(R.id.choose).setOnClickListener(view -> choose());
        if (state == null) {
            invited(getIntent());
        }
    }

    /** The camera has read a token's QR code: what it says is filled in, and saved by whoever looks at it. */
    private void invited(Intent intent) {
        if (!Intent.ACTION_VIEW.equals(intent.getAction()) || intent.getDataString() == null) {
            return;
        }
        try {
            Invitation invitation = Invitation.in(intent.getDataString());
            field(R.id.server).setText(invitation.server);
            field(R.id.token).setText(invitation.pinned());
            say(getString(R.string.invited));
        } catch (SpryException error) { // a link of the same scheme that is none
            say(error.getMessage());
        }
    }

    @Override
    protected void onStart() {
        super.onStart();
        journal.listen(this);
        schedule.ensure();
        if (!RoundService.isBusy()) {
            new Notices(this).clear(); // left by a process that the system ended
        }
        showAll();
        countExamples();
    }

    @Override
    protected void onStop() {
        journal.ignore(this);
        super.onStop();
    }

    @Override
    public void onSharedPreferenceChanged(SharedPreferences kept, String name) {
        runOnUiThread(this::showAll);
    }

    // --- showing ---

    private void showAll() {
        text(R.id.status).setText(status());
        String problem = journal.problem();
        text(R.id.problem).setText(problem);
        text(R.id.problem).setVisibility(problem.isEmpty() ? View.GONE : View.VISIBLE);
        text(R.id.answer).setText(journal.answer());
        ProgressBar progress = (ProgressBar) findViewById(R.id.progress);
        progress.setVisibility(RoundService.isBusy() && journal.steps() > 0 ? View.VISIBLE : View.GONE);
        progress.setMax(journal.steps());
        progress.setProgress(journal.step());
        JSONArray rounds = journal.rounds();
        StringBuilder shown = new StringBuilder();
        for (int i = 0; i < rounds.length(); i++) {
            shown.append(i > 0 ? "\n\n" : "").append(round(rounds.optJSONObject(i)));
        }
        text(R.id.rounds).setText(rounds.length() == 0 ? getString(R.string.rounds_none) : shown);
    }

    private String status() {
        if (settings.server().isEmpty() || !settings.isOn(Settings.CONSENT)) {
            return getString(R.string.status_new);
        }
        if (settings.isOn(Settings.PAUSED)) {
            return getString(R.string.status_paused);
        }
        if (RoundService.isBusy()) {
            return getString(R.string.status_running, journal.status());
        }
        String planned = getString(R.string.status_planned, schedule.conditions());
        String last = journal.status();
        return last.isEmpty() ? planned : getString(R.string.status_idle, last) + "\n" + planned;
    }

    private String round(JSONObject round) {
        StringBuilder shown = new StringBuilder(
                getString(R.string.round, round.optInt("round"), round.optString("job"), round.optString("message")));
        if (round.optInt("held_back") > 0) {
            shown.append('\n').append(getString(R.string.round_accuracy,
                    round.optInt("held_back"), round.optInt("before"), round.optInt("after")));
        }
        String battery = !round.has("charge") ? getString(R.string.battery_unknown)
                : round.optInt("charge") < 0 ? getString(R.string.battery_charged)
                : getString(R.string.battery_used, round.optInt("charge") / 1000.0);
        return shown.append('\n').append(getString(R.string.round_cost,
                round.optInt("seconds"), round.optLong("memory") / 1_000_000, battery)).toString();
    }

    private void countExamples() {
        new Thread(() -> {
            String found;
            try {
                int count = data.count();
                found = getResources().getQuantityString(R.plurals.examples_count, count, count);
            } catch (IOException error) {
                found = error.getMessage();
            }
            String shown = found;
            runOnUiThread(() -> text(R.id.examples).setText(shown));
        }, "examples").start();
    }

    // --- settings ---

    private void bind(int id, String choice) {
        Switch view = (Switch) findViewById(id);
        view.setSaveEnabled(false); // the settings know it better than the screen that was turned
        view.setChecked(settings.isOn(choice));
        view.setOnCheckedChangeListener((button, on) -> {
            settings.turn(choice, on);
            schedule.refresh();
            if (on && choice.equals(Settings.CONSENT)) {
                askForNotices();
            }
            showAll();
        });
    }

    private void save() {
        String server = written(R.id.server);
        String memory = written(R.id.memory);
        if (!server.startsWith("https://") && !server.startsWith("http://")) {
            say(getString(R.string.server_wrong));
        } else if (!memory.matches("[0-9]{2,6}") || Integer.parseInt(memory) < LEAST_MEMORY) {
            say(getString(R.string.memory_wrong, memory));
        } else {
            save(server, Integer.parseInt(memory));
        }
    }

    private void save(String server, int megabytes) {
        try {
            settings.save(server, written(R.id.token), written(R.id.name), megabytes);
            schedule.refresh();
            showAll();
            say(getString(R.string.saved));
        } catch (SpryException error) { // an address that is none
            say(error.getMessage());
        }
    }

    private void lookNow() {
        if (settings.takesPart()) {
            schedule.now();
        } else {
            say(getString(R.string.now_refused));
        }
    }

    private void askForNotices() {
        if (Build.VERSION.SDK_INT >= WITH_NOTICE_PERMISSION
                && checkSelfPermission(MAY_NOTIFY) != PackageManager.PERMISSION_GRANTED) {
            requestPermissions(new String[] {MAY_NOTIFY}, NOTICES);
        }
    }

    @Override
    public void onRequestPermissionsResult(int request, String[] names, int[] results) {
        if (request == NOTICES && (results.length == 0 || results[0] != PackageManager.PERMISSION_GRANTED)) {
            say(getString(R.string.notices_refused));
        }
    }

    // --- examples ---

    private void classify() {
        String text = written(R.id.text);
        if (text.isEmpty()) {
            say(getString(R.string.text_missing));
        } else {
            new Classifier(this).ask(text);
        }
    }

    private void keep() {
        String text = written(R.id.text);
        String label = written(R.id.label);
        if (text.isEmpty() || label.isEmpty()) {
            say(getString(R.string.label_missing));
            return;
        }
        try {
            data.add(text, label);
            say(getString(R.string.kept));
            field(R.id.text).setText("");
            countExamples();
        } catch (IOException error) {
            say(getString(R.string.no_storage, error.getMessage()));
        }
    }

    private void choose() {
        Intent open = new Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE).setType("*/*");
        try {
            startActivityForResult(open, FILE);
        } catch (ActivityNotFoundException error) {
            say(getString(R.string.examples_no_files));
        }
    }

    @Override
    protected void onActivityResult(int request, int result, Intent chosen) {
        if (request != FILE || result != RESULT_OK || chosen == null || chosen.getData() == null) {
            return;
        }
        new Thread(() -> {
            String found;
            try {
                data.replace(chosen.getData());
                found = getString(R.string.examples_taken);
            } catch (SpryException | IOException | SecurityException error) {
                found = error.getMessage();
            }
            String shown = found;
            runOnUiThread(() -> {
                say(shown);
                countExamples();
            });
        }, "examples").start();
    }

    // --- views ---

    private TextView text(int id) {
        return (TextView) findViewById(id);
    }

    private EditText field(int id) {
        return (EditText) findViewById(id);
    }

    private String written(int id) {
        return field(id).getText().toString().trim();
    }

    private void say(String message) {
        Toast.makeText(this, message, Toast.LENGTH_LONG).show();
    }
}
