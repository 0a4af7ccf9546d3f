package dev.spry.core.generation;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import dev.spry.core.BundleException;
import dev.spry.core.ProgramInputException;
import dev.spry.core.ProgramRunner;
import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.RuntimeSpec;
import dev.spry.core.bundle.TensorSpec;

/**
 * A bundle's programs prefill and decode, run over a cache of keys and values that stays here.
 *
 * <p>Programs read the cache where it lies. Some give it back with the new tokens' keys and values in it; others give
 * these alone, to be written into it here.
 */
final class Decoder {
    private static final String PREFILL = "prefill";
    private static final String DECODE = "decode";
    private static final String WEIGHT = "w:";
    private static final String KEY = "key.";
    private static final String VALUE = "value.";
    private static final int KEY_AXIS = 2;
    private static final int VALUE_AXIS = 1;
    /** Axes of a cache that comes back whole: it has its batch. */
    private static final int WHOLE = 4;

    /** Tokens of prompt and answer together. */
    final int length;
    private final int chunk;
    private final ProgramRunner runner;
    private final List<ProgramSpec> prefill = new ArrayList<>();
    private final List<ProgramSpec> decode = new ArrayList<>();
    private final Map<String, Tensor> values = new LinkedHashMap<>();
    private int position;

    Decoder(Manifest manifest, ProgramRunner runner, Map<String, Tensor> weights) {
        RuntimeSpec spec = manifest.runtime(runner.runtime());
        if (manifest.generation == null || spec.generation.isEmpty()) {
            throw new BundleException("the bundle has no programs that generate text with " + runner.runtime()
                    + ": export it with --task causal-lm --generate 512 --target " + runner.runtime());
        }
        length = manifest.generation.length;
        chunk = manifest.generation.chunk;
        this.runner = runner;
        for (ProgramSpec program : spec.generation) {
            (program.kind.equals(PREFILL) ? prefill : decode).add(program);
            for (TensorSpec input : program.inputs) {
                take(input, program, weights);
            }
        }
    }

    /** What never changes of a program's inputs, and an empty cache. */
    private void take(TensorSpec input, ProgramSpec program, Map<String, Tensor> weights) {
        if (input.name.startsWith(WEIGHT)) {
            Tensor weight = weights.get(input.name.substring(WEIGHT.length()));
            if (weight == null) {
                throw new ProgramInputException("the weights given lack " + input.name.substring(WEIGHT.length())
                        + ", an input of " + program.name());
            }
            values.put(input.name, weight);
        } else if (input.name.startsWith(KEY) || input.name.startsWith(VALUE)) {
            int count = 1;
            for (int size : input.shape()) {
                count *= size;
            }
            values.putIfAbsent(input.name, Tensor.of(new float[count], input.shape()));
        }
    }

    /** Forgets all tokens but the first so many. */
    void keep(int tokens) {
        position = Math.min(tokens, position);
    }

    /** Reads tokens behind those before; the logits of what follows the last one. */
    float[] read(List<Integer> tokens) throws IOException {
        if (tokens.isEmpty()) {
            throw new ProgramInputException("expected tokens to read, got none");
        }
        if (tokens.size() > length - position) {
            throw new ProgramInputException("the cache holds " + length + " tokens and has " + position + ", got "
                    + tokens.size() + " more: begin anew with fewer, or export the bundle with a larger --generate");
        }
        if (tokens.size() == 1) {
            return run(decode, new long[] {tokens.get(0)}, 1);
        }
        float[] logits = null;
        for (int start = 0; start < tokens.size(); start += chunk) {
            int count = Math.min(chunk, tokens.size() - start);
            long[] padded = new long[chunk];
            Arrays.fill(padded, tokens.get(start + count - 1));
            for (int i = 0; i < count; i++) {
                padded[i] = tokens.get(start + i);
            }
            logits = run(prefill, padded, count);
        }
        for (ProgramSpec program : prefill) { // what it maps of the weights would count twice beside decode
            runner.release(program);
        }
        return logits;
    }

    private float[] run(List<ProgramSpec> programs, long[] tokens, int count) throws IOException {
        long[] positions = new long[tokens.length];
        for (int i = 0; i < positions.length; i++) {
            positions[i] = Math.min(position + i, length - 1); // of padding: any that exists
        }
        values.put("input_ids", Tensor.of(tokens, 1, tokens.length));
        values.put("position_ids", Tensor.of(positions, 1, tokens.length));
        values.put("last", Tensor.of(new long[] {count - 1}, 1));
        float[] logits = null;
        for (ProgramSpec program : programs) {
            Tensor[] inputs = new Tensor[program.inputs.size()];
            for (int i = 0; i < inputs.length; i++) {
                inputs[i] = values.get(program.inputs.get(i).name);
            }
            Tensor[] outputs = runner.run(program, inputs);
            for (int i = 0; i < outputs.length; i++) {
                String name = program.outputs.get(i).name;
                boolean isCache = name.startsWith(KEY) || name.startsWith(VALUE);
                if (isCache && outputs[i].shape().length == WHOLE) {
                    values.put(name, outputs[i]);
                } else if (name.startsWith(KEY)) {
                    write(values.get(name), outputs[i], KEY_AXIS, count);
                } else if (name.startsWith(VALUE)) {
                    write(values.get(name), outputs[i], VALUE_AXIS, count);
                } else if (name.equals("logits")) {
                    logits = outputs[i].floats();
                } else {
                    values.put(name, outputs[i]);
                }
            }
        }
        position += count;
        return logits;
    }

    /** The first so many of an axis, into the cache behind what it holds. */
    private void write(Tensor cache, Tensor found, int axis, int count) {
        int[] all = cache.shape();
        int outer = 1;
        int inner = 1;
        for (int i = 0; i < all.length; i++) {
            outer *= i < axis ? all[i] : 1;
            inner *= i > axis ? all[i] : 1;
        }
        int given = found.shape()[axis];
        for (int row = 0; row < outer; row++) {
            System.arraycopy(found.floats(), row * given * inner, cache.floats(),
                    (row * all[axis] + position) * inner, count * inner);
        }
    }
}
