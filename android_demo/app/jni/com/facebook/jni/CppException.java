package com.facebook.jni;

/** What a native function threw. */
public class CppException extends RuntimeException {
    private static final long serialVersionUID = 1;

    public CppException(String message) {
        super(message);
    }
}
