package dev.spry.app;

import android.app.Notification;
import android.app.NotificationChannel;
import android.app.NotificationManager;
import android.app.PendingIntent;
import android.content.Context;
import android.content.Intent;
import dev.spry.core.Event;

/** The notification with a round's progress. Without the permission the system shows none, and all else works. */
final class Notices {
    private static final String CHANNEL = "progress";
    private static final int ID = 1;

    private final Context context;
    private final NotificationManager manager;

    Notices(Context context) {
        this.context = context;
        manager = (NotificationManager) context.getSystemService(Context.NOTIFICATION_SERVICE);
        manager.createNotificationChannel(new NotificationChannel(
                CHANNEL, context.getString(R.string.notices), NotificationManager.IMPORTANCE_LOW));
    }

    void show(Event event) {
        Object step = event.details.get("step");
        Object steps = event.details.get("steps");
        boolean counted = step instanceof Integer && steps instanceof Integer;
        PendingIntent open = PendingIntent.getActivity(
                context, 0, new Intent(context, MainActivity.class), PendingIntent.FLAG_IMMUTABLE);
        manager.notify(ID, new Notification.Builder(context, CHANNEL)
                .setSmallIcon(R.drawable.notice)
                .setContentTitle(context.getString(R.string.app_name))
                .setContentText(event.message)
                .setContentIntent(open)
                .setOngoing(true)
                .setOnlyAlertOnce(true)
                .setProgress(counted ? (Integer) steps : 0, counted ? (Integer) step : 0, false)
                .build());
    }

    void clear() {
        manager.cancel(ID);
    }
}
