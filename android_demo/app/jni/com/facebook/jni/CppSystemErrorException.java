package com.facebook.jni;

public class CppSystemErrorException extends CppException {
    private static final long serialVersionUID = 1;

    public final int errorCode;

    public CppSystemErrorException(String message, int errorCode) {
        super(message);
        this.errorCode = errorCode;
    }
}
