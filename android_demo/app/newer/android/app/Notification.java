package android.app;

import android.content.Context;

/** As API 26 has it, for verify.sh to compile against; it is not packaged. */
public class Notification {
    /** As API 26 has it. */
    public static class Builder {
        public Builder(Context context, String channel) {
            throw new UnsupportedOperationException(context + channel);
        }

        public native Builder setSmallIcon(int icon);

        public native Builder setContentTitle(CharSequence title);

        public native Builder setContentText(CharSequence text);

        public native Builder setContentIntent(PendingIntent intent);

        public native Builder setOngoing(boolean ongoing);

        public native Builder setOnlyAlertOnce(boolean once);

        public native Builder setProgress(int most, int progress, boolean indeterminate);

        public native Notification build();
    }
}
