package com.facebook.soloader.nativeloader;

/** Leaves the loading to the system, which finds the libraries of an APK. */
public final class SystemDelegate implements NativeLoaderDelegate {
    @Override
    public boolean loadLibrary(String name) {
        System.loadLibrary(name);
        return true;
    }
}
