package com.facebook.jni;

import java.lang.ref.PhantomReference;
import java.lang.ref.ReferenceQueue;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;

import com.facebook.soloader.nativeloader.NativeLoader;

/**
 * Holds what a native object belongs to: it is deleted when asked, or when nobody holds this any more. libfbjni finds
 * the names of the class, its field and the destructor's by themselves, so they stay as they are.
 */
public class HybridData {
    private final Destructor mDestructor = new Destructor(this);

    static {
        NativeLoader.loadLibrary("fbjni");
        Thread reaper = new Thread(Destructor::reap, "HybridData");
        reaper.setDaemon(true);
        reaper.start();
    }

    public void resetNative() {
        mDestructor.destruct();
    }

    public boolean isValid() {
        return mDestructor.mNativePointer != 0;
    }

    public static final class Destructor extends PhantomReference<Object> {
        private static final ReferenceQueue<Object> UNREACHABLE = new ReferenceQueue<>();
        private static final Set<Destructor> ALL = Collections.synchronizedSet(new HashSet<>());

        private volatile long mNativePointer;

        Destructor(Object owner) {
            super(owner, UNREACHABLE);
            ALL.add(this);
        }

        synchronized void destruct() {
            ALL.remove(this);
            long pointer = mNativePointer;
            mNativePointer = 0;
            if (pointer != 0) {
                deleteNative(pointer);
            }
        }

        private static void reap() {
            while (true) {
                try {
                    ((Destructor) UNREACHABLE.remove()).destruct();
                } catch (InterruptedException ignored) {
                    return;
                }
            }
        }

        static native void deleteNative(long pointer);
    }
}
