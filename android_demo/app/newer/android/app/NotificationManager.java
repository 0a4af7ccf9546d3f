package android.app;

/** As API 26 has it, for verify.sh to compile against; it is not packaged. */
public class NotificationManager {
    public static final int IMPORTANCE_LOW = 2;

    public native void createNotificationChannel(NotificationChannel channel);

    public native void notify(int id, Notification notification);

    public native void cancel(int id);
}
