package dev.spry.core;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

import dev.spry.core.bundle.ProgramSpec;
import dev.spry.core.bundle.TensorSpec;

/**
 * Runs programs in a process of the Python package: src/test/python/program_worker.py, which also says what they say to
 * each other. The environment names the interpreter (SPRY_PYTHON) and the script (SPRY_WORKER).
 */
public final class WorkerRunner implements ProgramRunner {
    private final String runtime;
    private final Process process;
    private final DataOutputStream to;
    private final DataInputStream from;

    public WorkerRunner(File bundle, String runtime) throws IOException {
        this.runtime = runtime;
        String[] words = {named("SPRY_PYTHON"), named("SPRY_WORKER"), bundle.getPath(), runtime};
        process = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        to = new DataOutputStream(new BufferedOutputStream(process.getOutputStream(), 1 << 16));
        from = new DataInputStream(new BufferedInputStream(process.getInputStream(), 1 << 16));
    }

    private static String named(String variable) {
        String value = System.getenv(variable);
        if (value == null) {
            throw new IllegalStateException("set " + variable + ", which names what runs the programs");
        }
        return value;
    }

    @Override
    public String runtime() {
        return runtime;
    }

    @Override
    public Tensor[] run(ProgramSpec program, Tensor[] inputs) throws IOException {
        ask('R', program);
        for (Tensor input : inputs) {
            to.write(bytes(input));
        }
        await();
        Tensor[] outputs = new Tensor[program.outputs.size()];
        for (int i = 0; i < outputs.length; i++) {
            outputs[i] = read(program.outputs.get(i));
        }
        return outputs;
    }

    @Override
    public void release(ProgramSpec program) {
        try {
            ask('F', program);
            await();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void close() throws IOException {
        to.close();
        try {
            process.waitFor();
        } catch (InterruptedException interrupted) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }

    private void ask(char what, ProgramSpec program) throws IOException {
        byte[] key = program.key().getBytes(StandardCharsets.UTF_8);
        to.writeByte(what);
        to.writeShort(Short.reverseBytes((short) key.length));
        to.write(key);
    }

    private void await() throws IOException {
        to.flush();
        if (from.readByte() != 0) {
            byte[] reason = new byte[Integer.reverseBytes(from.readInt())];
            from.readFully(reason);
            throw new IOException(new String(reason, StandardCharsets.UTF_8));
        }
    }

    private static byte[] bytes(Tensor tensor) {
        ByteBuffer out = ByteBuffer.allocate(tensor.size() * width(tensor.dtype())).order(ByteOrder.LITTLE_ENDIAN);
        switch (tensor.dtype()) {
            case "float32":
                out.asFloatBuffer().put(tensor.floats());
                break;
            case "int32":
                out.asIntBuffer().put(tensor.ints());
                break;
            case "int64":
                out.asLongBuffer().put(tensor.longs());
                break;
            default:
                out.put(tensor.bytes());
        }
        return out.array();
    }

    private Tensor read(TensorSpec spec) throws IOException {
        int[] shape = spec.shape();
        int count = 1;
        for (int length : shape) {
            count *= length;
        }
        byte[] data = new byte[count * width(spec.dtype)];
        from.readFully(data);
        ByteBuffer in = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        switch (spec.dtype) {
            case "float32":
                float[] floats = new float[count];
                in.asFloatBuffer().get(floats);
                return Tensor.of(floats, shape);
            case "int32":
                int[] ints = new int[count];
                in.asIntBuffer().get(ints);
                return Tensor.of(ints, shape);
            case "int64":
                long[] longs = new long[count];
                in.asLongBuffer().get(longs);
                return Tensor.of(longs, shape);
            default:
                return Tensor.of(data, shape);
        }
    }

    private static int width(String dtype) {
        switch (dtype) {
            case "float32":
            case "int32":
                return 4;
            case "int64":
                return 8;
            case "int8":
                return 1;
            default:
                throw new IllegalArgumentException("no tensor holds " + dtype);
        }
    }
}
