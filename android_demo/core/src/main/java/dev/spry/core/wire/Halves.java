package dev.spry.core.wire;

/** Numbers of 16 bits (IEEE 754 binary16), rounded to the nearest, ties to even. */
final class Halves {
    private static final int INFINITY = 0x7c00;

    private Halves() {
    }

    static short encode(float value) {
        int bits = Float.floatToRawIntBits(value);
        int sign = bits >>> 16 & 0x8000;
        int magnitude = bits & 0x7fffffff;
        if (magnitude > 0x7f800000) {
            return (short) (sign | INFINITY | 0x200);
        }
        if (magnitude >= 0x477ff000) { // 65520 and more round to infinity
            return (short) (sign | INFINITY);
        }
        if (magnitude < 0x38800000) { // below 2^-14: multiples of 2^-24
            return (short) (sign | (int) Math.rint(Math.abs((double) value) * 0x1p24));
        }
        int rounded = magnitude + 0xfff + (magnitude >>> 13 & 1);
        return (short) (sign | (rounded >>> 13) - (112 << 10));
    }

    static float decode(short half) {
        int sign = (half & 0x8000) << 16;
        int exponent = half >>> 10 & 0x1f;
        int fraction = half & 0x3ff;
        if (exponent == 0) {
            float small = (float) (fraction * 0x1p-24);
            return sign == 0 ? small : -small;
        }
        int wide = exponent == 0x1f ? 0xff : exponent + 112;
        return Float.intBitsToFloat(sign | wide << 23 | fraction << 13);
    }
}
