package dev.spry.app;

import android.app.ActivityManager;
import android.content.Context;
import android.content.Intent;
import android.content.IntentFilter;
import android.net.ConnectivityManager;
import android.os.BatteryManager;
import dev.spry.core.Machine;

/** What Android tells about power, network and memory. */
final class Phone implements Machine {
    private final Context context;

    Phone(Context context) {
        this.context = context;
    }

    @Override
    public String power() {
        Intent battery = context.registerReceiver(null, new IntentFilter(Intent.ACTION_BATTERY_CHANGED));
        if (battery == null) {
            return "unknown";
        }
        return battery.getIntExtra(BatteryManager.EXTRA_PLUGGED, 0) == 0 ? "battery" : "mains";
    }

    @Override
    public Boolean metered() {
        ConnectivityManager networks = (ConnectivityManager) context.getSystemService(Context.CONNECTIVITY_SERVICE);
        return networks == null ? null : (Boolean) networks.isActiveNetworkMetered();
    }

    @Override
    public Long freeMemory() {
        ActivityManager manager = (ActivityManager) context.getSystemService(Context.ACTIVITY_SERVICE);
        if (manager == null) {
            return null;
        }
        ActivityManager.MemoryInfo memory = new ActivityManager.MemoryInfo();
        manager.getMemoryInfo(memory);
        return Math.max(memory.availMem - memory.threshold, 0);
    }

    /** What the battery holds, in millionths of an ampere hour; null where the phone does not count it. */
    Integer charge() {
        BatteryManager battery = (BatteryManager) context.getSystemService(Context.BATTERY_SERVICE);
        int found = battery == null ? 0 : battery.getIntProperty(BatteryManager.BATTERY_PROPERTY_CHARGE_COUNTER);
        return found <= 0 ? null : (Integer) found;
    }
}
