package dev.spry.core;

import java.io.File;
import java.io.IOException;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.store.Refused;
import dev.spry.core.store.Store;
import dev.spry.core.wire.Download;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.Task;

/** The bundle that a device works with, left open from round to round. */
final class Workshop {
    private final Server server;
    private final Store store;
    private final Engine engine;
    private final String publisher;
    private final Tell tell;
    private Workbench open;

    /** `publisher` is whose bundles alone are taken; null for all. */
    Workshop(Server server, Store store, Engine engine, String publisher, Tell tell) {
        this.server = server;
        this.store = store;
        this.engine = engine;
        this.publisher = publisher;
        this.tell = tell;
    }

    /** The task's bundle with its runtime, which is tried in that much memory; null: however much it takes. */
    Workbench benchFor(Task task, Long memory) throws IOException {
        if (open == null || !open.isFor(task)) {
            close();
            if (!task.runtime.equals(engine.name())) {
                throw new SpryException("the task is for the runtime " + task.runtime + ", this device offers "
                        + engine.name() + ": it goes back to the server, and the next check-in brings another");
            }
            open = opened(task, memory);
        }
        return open;
    }

    private Workbench opened(Task task, Long memory) throws IOException {
        Refused refused = new Refused(store);
        String known = refused.why(task.bundle, engine.version());
        if (known != null) {
            throw new WrongResultsException(known);
        }
        File folder = store.bundle(task.bundle);
        Download download = new Download(server, task.bundle, folder, tell).signedBy(publisher).from(task.mirrors);
        Bundle bundle = download.fetch(task.runtime);
        try {
            return new Workbench(bundle, task.bundle, engine, memory);
        } catch (WrongResultsException error) {
            refused.add(task.bundle, engine.version(), error.getMessage());
            throw error;
        }
    }

    /** Give back the memory of runtime, programs and tokenizer. */
    void close() {
        if (open != null) {
            open.close();
            open = null;
        }
    }
}
