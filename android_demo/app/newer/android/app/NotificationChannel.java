package android.app;

/** What API 26 has and the android.jar of API 23 lacks, for verify.sh to compile against; it is not packaged. */
public final class NotificationChannel {
    public NotificationChannel(String id, CharSequence name, int importance) {
        throw new UnsupportedOperationException(id + name + importance);
    }
}
