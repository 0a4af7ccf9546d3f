package dev.spry.app;

import java.io.File;

import android.content.Context;
import android.content.SharedPreferences;
import android.content.pm.PackageInfo;
import android.content.pm.PackageManager;
import android.os.Build;
import dev.spry.core.Client;
import dev.spry.core.Conditions;
import dev.spry.core.Tell;
import dev.spry.core.store.Store;

/** What the user has chosen; it survives restarts. */
final class Settings {
    static final String CONSENT = "consent";
    static final String PAUSED = "paused";
    static final String CHARGING = "only_charging";
    static final String UNMETERED = "only_unmetered";
    static final String IDLE = "only_idle";

    private static final String SERVER = "server";
    private static final String TOKEN = "token";
    private static final String NAME = "name";
    private static final String MEMORY = "memory";
    private static final String REFUSED = "refused";
    private static final int MEGABYTES = 400;
    /** Seconds after which a run gives an unreachable server up; the next one tries again. */
    private static final double PATIENCE = 60;

    private final Context context;
    private final SharedPreferences kept;

    Settings(Context context) {
        this.context = context;
        kept = context.getSharedPreferences("settings", Context.MODE_PRIVATE);
    }

    String server() {
        return kept.getString(SERVER, "");
    }

    String token() {
        return kept.getString(TOKEN, "");
    }

    String name() {
        return kept.getString(NAME, Build.MODEL == null ? "phone" : Build.MODEL);
    }

    int megabytes() {
        return kept.getInt(MEMORY, MEGABYTES);
    }

    /** One of the switches; those for charging and unmetered networks are on until somebody turns them off. */
    boolean isOn(String choice) {
        return kept.getBoolean(choice, choice.equals(CHARGING) || choice.equals(UNMETERED));
    }

    void turn(String choice, boolean on) {
        kept.edit().putBoolean(choice, on).apply();
    }

    /** Nothing leaves the phone before this is true. */
    boolean takesPart() {
        return isOn(CONSENT) && !isOn(PAUSED) && !server().isEmpty();
    }

    void save(String server, String token, String name, int megabytes) {
        boolean another = !token.isEmpty() && !token.equals(token());
        if (another && kept.getBoolean(REFUSED, false)) {
            new File(new Store(home(), server, Tell.SILENT).folder, "identity.json").delete(); // enrol again
        }
        kept.edit().putString(SERVER, server).putString(TOKEN, token).putString(NAME, name)
                .putInt(MEMORY, megabytes).putBoolean(REFUSED, kept.getBoolean(REFUSED, false) && !another).apply();
    }

    /** The server does not know this phone any more: another token enrols it again. */
    void refused() {
        kept.edit().putBoolean(REFUSED, true).apply();
    }

    private File home() {
        return new File(context.getFilesDir(), "spry");
    }

    /** A client by these settings, to be given data, an ear and a way to wait. */
    Client.Builder client() {
        Conditions conditions = new Conditions(new Phone(context)).onlyCharging(isOn(CHARGING))
                .unmeteredOnly(isOn(UNMETERED)).maxMemory(megabytes() * 1_000_000L);
        return new Client.Builder(home(), server(), new ExecuTorch(installed()))
                .token(token()).name(name()).conditions(conditions).skipBadRows(true).patience(PATIENCE);
    }

    /** Another text once another build of this app is installed; empty where the system does not say. */
    private String installed() {
        try {
            PackageInfo app = context.getPackageManager().getPackageInfo(context.getPackageName(), 0);
            return "app of " + app.lastUpdateTime;
        } catch (PackageManager.NameNotFoundException error) {
            return "";
        }
    }
}
