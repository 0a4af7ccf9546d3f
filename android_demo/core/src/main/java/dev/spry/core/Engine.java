package dev.spry.core;

import java.io.IOException;

import dev.spry.core.bundle.Bundle;

/** An inference runtime of this device. */
public interface Engine {
    /** As a manifest names it: "executorch" on a phone. */
    String name();

    /** Programs of a bundle, loaded when they are first run. */
    ProgramRunner open(Bundle bundle) throws IOException;
}
