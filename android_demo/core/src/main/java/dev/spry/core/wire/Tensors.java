package dev.spry.core.wire;

/** Weights as they came, with their version. */
public final class Tensors {
    public final int version;
    /** Safetensors. */
    public final byte[] data;

    Tensors(int version, byte[] data) {
        this.version = version;
        this.data = data;
    }
}
