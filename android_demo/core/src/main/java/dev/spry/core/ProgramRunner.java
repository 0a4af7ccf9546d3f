package dev.spry.core;

import java.io.Closeable;
import java.io.IOException;

import dev.spry.core.bundle.ProgramSpec;

/** Where programs of one bundle run: the only thing that this library wants of an inference runtime. */
public interface ProgramRunner extends Closeable {
    /** As a manifest names it: "executorch" on a phone. */
    String runtime();

    /** Runs a program of the bundle, loading it first if it is not loaded; inputs and outputs as its entry lists them. */
    Tensor[] run(ProgramSpec program, Tensor[] inputs) throws IOException;

    /** Gives back the memory of a program. */
    void release(ProgramSpec program);
}
