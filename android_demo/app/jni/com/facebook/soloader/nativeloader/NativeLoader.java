package com.facebook.soloader.nativeloader;

/** What ExecuTorch's classes and fbjni's ask to load libraries with; the Gradle build takes the published one. */
public final class NativeLoader {
    private static NativeLoaderDelegate delegate;

    private NativeLoader() {}

    public static synchronized boolean isInitialized() {
        return delegate != null;
    }

    public static synchronized void init(NativeLoaderDelegate chosen) {
        if (delegate == null) {
            delegate = chosen;
        }
    }

    public static synchronized boolean loadLibrary(String name) {
        init(new SystemDelegate());
        return delegate.loadLibrary(name);
    }
}
