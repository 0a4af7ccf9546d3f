package com.facebook.soloader.nativeloader;

public interface NativeLoaderDelegate {
    boolean loadLibrary(String name);
}
