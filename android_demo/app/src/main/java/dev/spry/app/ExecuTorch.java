package dev.spry.app;

import dev.spry.core.Engine;
import dev.spry.core.ProgramRunner;
import dev.spry.core.bundle.Bundle;

/** Android's ExecuTorch, as an engine of the client. */
final class ExecuTorch implements Engine {
    static final String NAME = "executorch";

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public ProgramRunner open(Bundle bundle) {
        return new ExecuTorchRunner(bundle.folder);
    }
}
