package dev.spry.app;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.pytorch.executorch.EValue;
import org.pytorch.executorch.Module;

import dev.spry.core.ProgramRunner;
import dev.spry.core.Tensor;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.TensorSpec;

/**
 * Runs a bundle's programs with ExecuTorch. Files are mapped, not read, and a program's inputs keep their buffers from
 * step to step: memory outside Java's heap is taken once.
 */
final class ExecuTorchRunner implements ProgramRunner {
    private static final String ONLY_METHOD = "forward";

    private final File folder;
    private final Map<String, Loaded> files = new HashMap<>();

    ExecuTorchRunner(File folder) {
        this.folder = folder;
    }

    /** A file's module, with the inputs of those of its methods that were run. */
    private static final class Loaded {
        final Module module;
        final Map<String, Inputs> methods = new HashMap<>();

        Loaded(File file) {
            module = Module.load(file.getPath(), Module.LOAD_MODE_MMAP);
        }
    }

    @Override
    public String runtime() {
        return ExecuTorch.NAME;
    }

    @Override
    public Tensor[] run(ProgramSpec program, Tensor[] inputs) throws IOException {
        String method = method(program);
        try {
            Loaded file = files.get(program.file);
            if (file == null) {
                file = new Loaded(Bundle.file(folder, program.file));
                files.put(program.file, file);
            }
            Inputs kept = file.methods.get(method);
            if (kept == null) {
                file.module.loadMethod(method);
                kept = new Inputs(program.inputs);
                file.methods.put(method, kept);
            }
            return read(file.module.execute(method, kept.filled(inputs)), program.outputs);
        } catch (RuntimeException error) {
            throw new IOException("ExecuTorch cannot run " + program.name() + ": " + error.getMessage(), error);
        }
    }

    private static String method(ProgramSpec program) {
        return program.method.isEmpty() ? ONLY_METHOD : program.method;
    }

    private static Tensor[] read(EValue[] outputs, List<TensorSpec> specs) {
        Tensor[] found = new Tensor[specs.size()];
        for (int i = 0; i < found.length; i++) {
            org.pytorch.executorch.Tensor output = outputs[i].toTensor();
            int[] shape = specs.get(i).shape();
            switch (specs.get(i).dtype) {
                case "int64":
                    found[i] = Tensor.of(output.getDataAsLongArray(), shape);
                    break;
                case "int32":
                    found[i] = Tensor.of(output.getDataAsIntArray(), shape);
                    break;
                case "int8":
                    found[i] = Tensor.of(output.getDataAsByteArray(), shape);
                    break;
                default:
                    found[i] = Tensor.of(output.getDataAsFloatArray(), shape);
            }
        }
        return found;
    }

    /** A file is given back when none of its methods is wanted any more. */
    @Override
    public void release(ProgramSpec program) {
        Loaded file = files.get(program.file);
        if (file != null && file.methods.remove(method(program)) != null && file.methods.isEmpty()) {
            file.module.close();
            files.remove(program.file);
        }
    }

    @Override
    public void close() {
        Set<Loaded> all = new HashSet<>(files.values());
        files.clear();
        for (Loaded file : all) {
            file.module.close();
        }
    }

    /** The buffers of one method's inputs. */
    private static final class Inputs {
        private final Object[] buffers;
        private final EValue[] values;

        Inputs(List<TensorSpec> specs) {
            buffers = new Object[specs.size()];
            values = new EValue[specs.size()];
            for (int i = 0; i < buffers.length; i++) {
                values[i] = EValue.from(tensor(i, specs.get(i)));
            }
        }

        private org.pytorch.executorch.Tensor tensor(int index, TensorSpec spec) {
            int[] shape = spec.shape();
            long[] wide = new long[shape.length];
            int count = 1;
            for (int i = 0; i < shape.length; i++) {
                wide[i] = shape[i];
                count = Math.multiplyExact(count, shape[i]);
            }
            switch (spec.dtype) {
                case "int64":
                    LongBuffer longs = org.pytorch.executorch.Tensor.allocateLongBuffer(count);
                    buffers[index] = longs;
                    return org.pytorch.executorch.Tensor.fromBlob(longs, wide);
                case "int32":
                    IntBuffer ints = org.pytorch.executorch.Tensor.allocateIntBuffer(count);
                    buffers[index] = ints;
                    return org.pytorch.executorch.Tensor.fromBlob(ints, wide);
                case "int8":
                    ByteBuffer bytes = org.pytorch.executorch.Tensor.allocateByteBuffer(count);
                    buffers[index] = bytes;
                    return org.pytorch.executorch.Tensor.fromBlob(bytes, wide);
                default:
                    FloatBuffer floats = org.pytorch.executorch.Tensor.allocateFloatBuffer(count);
                    buffers[index] = floats;
                    return org.pytorch.executorch.Tensor.fromBlob(floats, wide);
            }
        }

        EValue[] filled(Tensor[] inputs) {
            for (int i = 0; i < buffers.length; i++) {
                if (buffers[i] instanceof LongBuffer) {
                    ((LongBuffer) ((LongBuffer) buffers[i]).clear()).put(inputs[i].longs());
                } else if (buffers[i] instanceof IntBuffer) {
                    ((IntBuffer) ((IntBuffer) buffers[i]).clear()).put(inputs[i].ints());
                } else if (buffers[i] instanceof ByteBuffer) {
                    ((ByteBuffer) ((ByteBuffer) buffers[i]).clear()).put(inputs[i].bytes());
                } else {
                    ((FloatBuffer) ((FloatBuffer) buffers[i]).clear()).put(inputs[i].floats());
                }
            }
            return values;
        }
    }
}
