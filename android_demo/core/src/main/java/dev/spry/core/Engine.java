package dev.spry.core;

import java.io.IOException;

import dev.spry.core.bundle.Bundle;

/** An inference runtime of this device. */
public interface Engine {
    /** As a manifest names it: "executorch" on a phone. */
    String name();

    /**
     * Of its library, or whatever changes with it; empty where that is not known. What a library computes is tried once
     * for each version and bundle, and each time that a bundle is opened where the version is not known.
     */
    default String version() {
        return "";
    }

    /** Programs of a bundle, loaded when they are first run. */
    ProgramRunner open(Bundle bundle) throws IOException;
}
