package dev.spry.core;

import java.io.IOException;
import java.util.Collections;

import dev.spry.core.store.Store;
import dev.spry.core.wire.CheckIn;
import dev.spry.core.wire.CheckedIn;
import dev.spry.core.wire.Enrolled;
import dev.spry.core.wire.Server;

/** What the server is told of a device each time it looks for a task. */
final class CheckIns {
    final Conditions conditions;
    /** Take part where the server learns sums of updates alone. */
    final boolean onlySums;
    /** Of the device's data. */
    int rows;
    /** That a step of the newest round took; null before the first. */
    Double stepSeconds;
    private final Server server;
    private final Store store;
    private final Engine engine;
    private final Fitness fitness;
    private final String job;

    /** `job` is the only one to take part in, by id or name; null for any. */
    CheckIns(
            Server server, Store store, Engine engine, Conditions conditions, Fitness fitness, String job,
            boolean onlySums) {
        this.server = server;
        this.store = store;
        this.engine = engine;
        this.conditions = conditions;
        this.fitness = fitness;
        this.job = job;
        this.onlySums = onlySums;
    }

    /** A task, or how long to wait and why. */
    CheckedIn look() throws IOException {
        return server.checkIn(message());
    }

    private CheckIn message() throws IOException {
        CheckIn message = new CheckIn(Collections.singletonList(engine.name()));
        message.examples = rows;
        message.memoryBytes = conditions.memory();
        message.power = conditions.power();
        message.metered = conditions.metered();
        message.job = job;
        message.stepSeconds = stepSeconds;
        message.residentBytes = Memory.peak() == 0 ? null : (Long) Memory.peak();
        message.sums = signs();
        message.onlySums = onlySums;
        message.unfit = fitness.look(server);
        message.lowMemory = conditions.lowMemory();
        message.addsNoise = true;
        return message;
    }

    /** Whether there are jobs, and the device's rows fit none of them. */
    boolean fitNone() {
        return fitness.fitsNone();
    }

    /** Whether it has a key of its own; a server of an earlier version takes none. */
    boolean signs() {
        Enrolled identity = store.identity();
        return identity != null && identity.secret.isEmpty();
    }
}
