package dev.spry.app;

import dev.spry.core.Engine;
import dev.spry.core.ProgramRunner;
import dev.spry.core.bundle.Bundle;

/** Android's ExecuTorch, as an engine of the client. */
final class ExecuTorch implements Engine {
    static final String NAME = "executorch";

    private final String version;

    /** Of a version that is not known. */
    ExecuTorch() {
        this("");
    }

    /** No version is written into the library: it changes with the app that brings it. */
    ExecuTorch(String app) {
        version = app;
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public String version() {
        return version;
    }

    @Override
    public ProgramRunner open(Bundle bundle) {
        return new ExecuTorchRunner(bundle.folder);
    }
}
