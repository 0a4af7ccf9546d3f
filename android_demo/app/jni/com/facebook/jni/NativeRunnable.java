package com.facebook.jni;

/** A native function that Java may run; libfbjni makes it. */
public final class NativeRunnable implements Runnable {
    private final HybridData mHybridData;

    private NativeRunnable(HybridData data) {
        mHybridData = data;
    }

    @Override
    public native void run();
}
