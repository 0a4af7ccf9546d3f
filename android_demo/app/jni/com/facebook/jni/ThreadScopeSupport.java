package com.facebook.jni;

import com.facebook.soloader.nativeloader.NativeLoader;

/** Where libfbjni runs what a thread of its own has to do among Java's classes. */
public final class ThreadScopeSupport {
    static {
        NativeLoader.loadLibrary("fbjni");
    }

    private ThreadScopeSupport() {}

    private static void runStdFunction(long function) {
        runStdFunctionImpl(function);
    }

    private static native void runStdFunctionImpl(long function);
}
