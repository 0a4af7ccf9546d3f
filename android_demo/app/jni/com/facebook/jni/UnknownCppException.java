package com.facebook.jni;

public class UnknownCppException extends CppException {
    private static final long serialVersionUID = 1;

    public UnknownCppException() {
        super("unknown");
    }

    public UnknownCppException(String message) {
        super(message);
    }
}
