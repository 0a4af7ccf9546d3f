package dev.spry.core.sums;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Parameter;

/** An update as a sum takes it: by how much the head and each unit changed, in a row, and what the report says. */
public final class Changes {
    private static final String HEAD = "head";

    private Changes() {}

    private static String name(int unit) {
        return "unit " + unit;
    }

    /** Of the head and these units. */
    public static Map<String, Tensor> of(
            Manifest manifest, int[] units, Map<String, Tensor> own, Map<String, Tensor> start) {
        Map<String, Tensor> found = new LinkedHashMap<>();
        for (int unit : units) {
            found.put(name(unit), change(manifest.unit(unit).parameters, own, start));
        }
        found.put(HEAD, change(manifest.head, own, start));
        return found;
    }

    private static Tensor change(List<Parameter> parameters, Map<String, Tensor> own, Map<String, Tensor> start) {
        int size = 0;
        for (Parameter parameter : parameters) {
            size += parameter.size();
        }
        float[] found = new float[size];
        int at = 0;
        for (Parameter parameter : parameters) {
            float[] to = own.get(parameter.name).floats();
            float[] from = start.get(parameter.name).floats();
            for (int number = 0; number < to.length; number++) {
                found[at++] = to[number] - from[number];
            }
        }
        return Tensor.of(found, size);
    }

    /** How many numbers are beyond the clip. */
    public static int cut(Map<String, Tensor> moved) {
        int found = 0;
        for (Tensor change : moved.values()) {
            for (float number : change.floats()) {
                found += Math.abs(number) > Fixed.CLIP ? 1 : 0;
            }
        }
        return found;
    }

    /** The integers of an update, before masks; `moved` is what `of` gave. */
    public static Parts unmasked(
            Map<String, Tensor> moved, int[] units, Fixed.Told report, long cap, int count, List<String> scores) {
        int weighs = Fixed.weight(report.examples, cap);
        Parts parts = new Parts(Fixed.told(report, weighs, scores));
        parts.put(Parts.HEAD, Fixed.encoded(moved.get(HEAD).floats(), weighs, count));
        for (int unit : units) {
            parts.put(Parts.UNITS + unit, Fixed.encoded(moved.get(name(unit)).floats(), weighs, count));
        }
        return parts;
    }

    /** The same of a private sum, with this device's share of the noise; reports say nothing but that they are there. */
    public static Parts noisy(
            Map<String, Tensor> moved, int[] units, Share share, byte[] secret, int count, List<String> scores) {
        Fixed.Told silent = new Fixed.Told();
        silent.examples = 1;
        silent.steps = 1;
        Map<Integer, float[]> changes = new TreeMap<>();
        changes.put(Parts.HEAD, moved.get(HEAD).floats());
        for (int unit : units) {
            changes.put(Parts.UNITS + unit, moved.get(name(unit)).floats());
        }
        Parts parts = new Parts(Fixed.told(silent, Fixed.WHOLE, scores));
        for (Map.Entry<Integer, int[]> part : share.encoded(changes, count, secret).entrySet()) {
            parts.put(part.getKey(), part.getValue());
        }
        return parts;
    }
}
