package dev.spry.app;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import android.content.Context;
import android.content.SharedPreferences;
import android.os.SystemClock;
import dev.spry.core.Event;
import dev.spry.core.Memory;
import dev.spry.core.Tell;

/** What the screen shows of the work: kept, so that a turned screen or another process shows the same. */
final class Journal implements Tell {
    private static final String CHANGED = "changed";
    private static final String STATUS = "status";
    private static final String PROBLEM = "problem";
    private static final String ANSWER = "answer";
    private static final String STEP = "step";
    private static final String STEPS = "steps";
    private static final String ROUNDS = "rounds";
    private static final int SHOWN = 5;

    private final SharedPreferences kept;
    private final Phone phone;
    private final String sent;
    private JSONObject round;
    private long started;
    private Integer charge;

    Journal(Context context) {
        kept = context.getSharedPreferences("journal", Context.MODE_PRIVATE);
        phone = new Phone(context);
        sent = context.getString(R.string.round_sent);
    }

    // --- the work writes ---

    void begin() {
        kept.edit().putLong(CHANGED, SystemClock.elapsedRealtime()).remove(PROBLEM).putInt(STEPS, 0).apply();
    }

    void end() {
        kept.edit().putLong(CHANGED, SystemClock.elapsedRealtime()).putInt(STEPS, 0).apply();
    }

    void problem(String message) {
        kept.edit().putString(PROBLEM, message).apply();
    }

    void answer(String text) {
        kept.edit().putString(ANSWER, text).apply();
    }

    @Override
    public void tell(Event event) {
        SharedPreferences.Editor edit = kept.edit();
        switch (event.kind) {
            case "task":
                finish(edit, status()); // a round of iterations uploads nothing at its end
                open(event);
                edit.remove(PROBLEM);
                break;
            case "progress":
                edit.putInt(STEP, number(event, "step")).putInt(STEPS, number(event, "steps"));
                break;
            case "evaluated":
                note("held_back", number(event, "held_back"));
                note("before", number(event, "right_global"));
                note("after", number(event, "right_personal"));
                break;
            case "uploaded":
                finish(edit, sent);
                break;
            case "late":
                finish(edit, event.message);
                break;
            case "waiting":
                finish(edit, status());
                break;
            case "failed":
            case "refused":
                finish(edit, event.message);
                edit.putString(PROBLEM, event.message);
                break;
            case "unreachable":
            case "warning":
                edit.putString(PROBLEM, event.message);
                break;
            case "reachable":
                edit.remove(PROBLEM);
                break;
            case "stopped": // by the system or the user: the last status says more
                return;
            default:
                break;
        }
        edit.putString(STATUS, event.message).apply();
    }

    private void open(Event event) {
        round = new JSONObject();
        started = SystemClock.elapsedRealtime();
        charge = phone.charge();
        note("round", number(event, "round"));
        note("job", event.details.get("job"));
    }

    /** Puts the round that was open before the others; an earlier run's result that was still to be sent has none. */
    private void finish(SharedPreferences.Editor edit, String message) {
        edit.putInt(STEPS, 0);
        if (round == null) {
            return;
        }
        note("message", message);
        note("seconds", (SystemClock.elapsedRealtime() - started) / 1000);
        note("memory", Memory.peak());
        Integer now = phone.charge();
        if (charge != null && now != null) {
            note("charge", charge - now);
        }
        JSONArray all = rounds();
        JSONArray result = new JSONArray().put(round);
        for (int i = 0; i < all.length() && result.length() < SHOWN; i++) {
            result.put(all.opt(i));
        }
        round = null;
        edit.putString(ROUNDS, result.toString());
    }

    private void note(String name, Object value) {
        try {
            if (round != null) {
                round.put(name, value);
            }
        } catch (JSONException error) {
            throw new AssertionError(error); // a finite number or a text
        }
    }

    private static int number(Event event, String name) {
        Object found = event.details.get(name);
        return found instanceof Number ? ((Number) found).intValue() : 0;
    }

    // --- the screen reads ---

    void listen(SharedPreferences.OnSharedPreferenceChangeListener listener) {
        kept.registerOnSharedPreferenceChangeListener(listener);
    }

    void ignore(SharedPreferences.OnSharedPreferenceChangeListener listener) {
        kept.unregisterOnSharedPreferenceChangeListener(listener);
    }

    String status() {
        return kept.getString(STATUS, "");
    }

    String problem() {
        return kept.getString(PROBLEM, "");
    }

    String answer() {
        return kept.getString(ANSWER, "");
    }

    int step() {
        return kept.getInt(STEP, 0);
    }

    /** Of the round under way; 0 where there is none. */
    int steps() {
        return kept.getInt(STEPS, 0);
    }

    JSONArray rounds() {
        try {
            return new JSONArray(kept.getString(ROUNDS, "[]"));
        } catch (JSONException damaged) {
            return new JSONArray();
        }
    }
}
