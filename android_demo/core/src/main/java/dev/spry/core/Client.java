package dev.spry.core;

import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.util.Calendar;
import java.util.Collections;
import java.util.List;

import javax.net.ssl.SSLSocketFactory;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Keys;
import dev.spry.core.data.Example;
import dev.spry.core.data.Source;
import dev.spry.core.data.Template;
import dev.spry.core.generation.Conversation;
import dev.spry.core.generation.Generator;
import dev.spry.core.generation.Wish;
import dev.spry.core.store.Job;
import dev.spry.core.store.JobStore;
import dev.spry.core.store.Store;
import dev.spry.core.wire.CheckIn;
import dev.spry.core.wire.CheckedIn;
import dev.spry.core.wire.Download;
import dev.spry.core.wire.Enrolled;
import dev.spry.core.wire.Receipt;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.Task;

/**
 * A device on one server: enrols once, then takes part in rounds for as long as it runs.
 *
 * <pre>
 * Client client = new Client.Builder(home, "https://spry.example.org", engine)
 *         .token("…").data(new JsonlSource(file)).tell(event -> …).open();
 * client.run(Client.ONCE);
 * client.predict(examples, true);
 * </pre>
 *
 * <p>`run` belongs to one thread; `stop` may come from any, and what was trained is kept.
 */
public final class Client implements Closeable {
    /** Take part in what there is now alone. */
    public static final int ONCE = 0;
    /** Take part until the server revokes this device or somebody stops it. */
    public static final int ENDLESS = -1;
    public static final String VERSION = "android 0.1.0";

    private final Builder chosen;
    private final Tell tell;
    private final Waits waits;
    private final Store store;
    private final Server server;
    private final OwnData data;
    private final String publisher;
    private Workbench bench;
    private int rows;
    private int rounds;
    private int failures;
    private int late;
    private Double stepSeconds;

    private Client(Builder chosen) {
        this.chosen = chosen;
        tell = chosen.tell;
        data = new OwnData(chosen.source, chosen.skipBadRows, chosen.holdout, tell);
        waits = new Waits(chosen.pause, chosen.longestWait, tell, this::unload);
        store = new Store(chosen.home, chosen.server, tell);
        publisher = publisher();
        server = new Server.Builder(chosen.server)
                .pause(waits::pause).tell(tell).trust(chosen.trust).patience(chosen.patience).open();
    }

    /** What a client may be told; all but home, server and engine can be left out. */
    public static final class Builder {
        private final File home;
        private final String server;
        private final Engine engine;
        private Source source;
        private String token;
        private String publisher;
        private String job;
        private String name = "android";
        private Conditions conditions = new Conditions(Machine.UNKNOWN);
        private double holdout = 0.1;
        private boolean skipBadRows;
        private Tell tell = Tell.SILENT;
        private Pause pause;
        private double longestWait = Double.POSITIVE_INFINITY;
        private SSLSocketFactory trust;
        private double patience = Double.POSITIVE_INFINITY;
        private boolean onlySums;

        /** Where everything is kept, the server's address, and where programs run. */
        public Builder(File home, String server, Engine engine) {
            this.home = home;
            this.server = server;
            this.engine = engine;
        }

        /** To train on; a client without can only predict. */
        public Builder data(Source rows) {
            source = rows;
            return this;
        }

        /** To enrol with; not needed by a device that has. The publisher's key that its point leads is pinned. */
        public Builder token(String text) {
            token = text;
            return this;
        }

        /** The public key whose bundles alone are taken from now on, in place of the one that was pinned before. */
        public Builder publisher(String key) {
            publisher = key;
            return this;
        }

        /** The only job to take part in, by id or name. */
        public Builder job(String only) {
            job = only;
            return this;
        }

        /** What the server shows for this device. */
        public Builder name(String shown) {
            name = shown;
            return this;
        }

        /** When to take part, and with how much memory. */
        public Builder conditions(Conditions asked) {
            conditions = asked;
            return this;
        }

        /** The share of the data that is kept for evaluation. */
        public Builder holdout(double share) {
            holdout = share;
            return this;
        }

        /** Leave rows out that cannot be used, in place of refusing the data. */
        public Builder skipBadRows(boolean wanted) {
            skipBadRows = wanted;
            return this;
        }

        /** Hears what happens, on the thread of `run`. */
        public Builder tell(Tell listener) {
            tell = listener;
            return this;
        }

        /** Take part where the server learns sums of updates alone. */
        public Builder onlySums(boolean wanted) {
            onlySums = wanted;
            return this;
        }

        /** How to wait, in place of a way that `stop` ends. */
        public Builder pause(Pause waits) {
            pause = waits;
            return this;
        }

        /** The seconds above which a wait ends the run instead, where something else starts the next. */
        public Builder longestWait(double seconds) {
            longestWait = seconds;
            return this;
        }

        /** Who may vouch for the server, in place of the system's authorities. */
        public Builder trust(SSLSocketFactory authorities) {
            trust = authorities;
            return this;
        }

        /** The seconds after which an unreachable server is given up; never when left out. */
        public Builder patience(double seconds) {
            patience = seconds;
            return this;
        }

        public Client open() {
            return new Client(this);
        }
    }

    // --- taking part ---

    /** Take part in so many rounds, ONCE or ENDLESS; gives back what it came to when it is done or stopped. */
    public Done run(int wanted) throws IOException {
        rounds = 0;
        failures = 0;
        late = 0;
        server.warnIfOpen();
        rows = data.count();
        boolean ended = false;
        try (Store.Lock locked = store.lock()) {
            if (publisher != null) {
                store.pin(publisher);
            }
            new Enrolment(server, store, tell).enrol(chosen.token, chosen.name);
            sendLeftOver();
            boolean wentOn = true;
            while (wanted == ONCE ? wentOn && rounds + failures + late == 0 : wanted == ENDLESS || rounds < wanted) {
                wentOn = turn();
            }
        } catch (Stopped stop) {
            ended = true;
            tell.tell(Event.of("stopped", stop.getMessage()));
        } finally {
            unload();
        }
        return new Done(rounds, failures, late, ended);
    }

    /** End a run, from any thread, at the next step or at once where it waits; this client does not run again. */
    public void stop() {
        waits.stop();
        server.close();
    }

    @Override
    public void close() {
        stop();
    }

    /** Whose bundles alone are taken; null for all. A token replaces no key that is pinned. */
    private String publisher() {
        String named = Keys.ofToken(chosen.token);
        if (chosen.publisher != null) {
            return Keys.publicKey(chosen.publisher);
        }
        String pinned = store.publisher();
        return pinned == null ? named : pinned;
    }

    /** A result that was finished before this process started; the server may have it already. */
    private void sendLeftOver() {
        for (JobStore job : store.jobs()) {
            Task task = job.task();
            if (task != null && job.update() != null) {
                guarded(job, task, () -> send(task, job));
            }
        }
    }

    /** One check-in and what comes of it; false when there was nothing to do. */
    private boolean turn() {
        waits.checkStopped();
        Conditions.Refusal refusal = chosen.conditions.refusal(Calendar.getInstance());
        if (refusal != null) {
            waits.await(refusal.seconds, refusal.reason);
            return false;
        }
        CheckedIn answer = server.checkIn(checkIn());
        if (answer.task == null) {
            waits.await(answer.wait, answer.reason);
            return false;
        }
        Task task = answer.task;
        JobStore job = store.job(task.job);
        waits.over();
        String message = "round " + task.round + " of " + task.jobName + ": " + task.units.length + " units";
        tell.tell(Event.of("task", message).with("task", task.id).with("job", task.jobName)
                .with("round", task.round).with("units", task.units.length));
        guarded(job, task, () -> takePart(task, job));
        return true;
    }

    private CheckIn checkIn() {
        CheckIn message = new CheckIn();
        message.runtimes = Collections.singletonList(chosen.engine.name());
        message.examples = rows;
        message.memoryBytes = chosen.conditions.memory();
        message.power = chosen.conditions.power();
        message.metered = chosen.conditions.metered();
        message.job = chosen.job;
        message.stepSeconds = stepSeconds;
        message.residentBytes = Memory.peak() == 0 ? null : (Long) Memory.peak();
        message.sums = signs();
        message.onlySums = chosen.onlySums;
        return message;
    }

    private Receipt takePart(Task task, JobStore job) throws IOException {
        if (chosen.onlySums && task.sum == null) {
            throw new TrainingException(
                    task.jobName + " shows updates to its server, and this device is to add to sums alone");
        }
        job.begin(task);
        if (job.update() == null) {
            Workbench open = workbench(task);
            job.saveAbout(new Job(task));
            OwnData.Parts parts = data.of(open.bundle);
            Round round = new Round(task, server, job, open, tell, waits::checkStopped);
            Double found = round.run(parts.training, parts.heldBack, chosen.conditions.memory());
            stepSeconds = found == null ? stepSeconds : found;
        }
        if (task.training.mode.equals("iteration")) {
            job.finish();
            return new Receipt(0);
        }
        return send(task, job);
    }

    private Receipt send(Task task, JobStore job) {
        Receipt receipt = task.sum == null ? server.sendUpdate(task.id, job.update()) : add(task, job);
        job.finish();
        String again = receipt.repeated ? " (it had it already)" : "";
        tell.tell(Event.of("uploaded", "the server has the result of round " + task.round + again)
                .with("task", task.id).with("round", task.round).with("repeated", receipt.repeated));
        return receipt;
    }

    /** The result goes into a sum. */
    private Receipt add(Task task, JobStore job) {
        if (!signs()) {
            throw new TrainingException("this device has no key of its own to add its update with: enrol again");
        }
        unload(); // others may train for long
        return new Adding(task, server, job, store.key(), waits::pause, tell).run();
    }

    /** Whether it has a key of its own; a server of an earlier version takes none. */
    private boolean signs() {
        Enrolled identity = store.identity();
        return identity != null && identity.secret.isEmpty();
    }

    private interface Part {
        Receipt take() throws IOException;
    }

    /** Do a task; what ends it early is told, to the server too, and the client goes on. */
    private void guarded(JobStore job, Task task, Part part) {
        Receipt receipt;
        try {
            receipt = part.take();
        } catch (UnauthorizedException | UnreachableException error) { // the task and its result stay for another run
            throw error;
        } catch (ServerException error) {
            job.finish();
            if (error.code.equals("late")) { // others were faster, or a time was up
                late++;
                tell.tell(Event.of("late", "round " + task.round + ": " + error.getMessage()).with("task", task.id));
                waits.afterLate();
                return;
            }
            failures++;
            tell.tell(Event.of("refused", "round " + task.round + ": " + error.getMessage())
                    .with("task", task.id).with("code", error.code));
            waits.afterFailure();
            return;
        } catch (SpryException | IOException | OutOfMemoryError error) {
            waits.checkStopped(); // a runtime that was interrupted may say so in its own way
            boolean memory = error instanceof OutOfMemoryError;
            giveBack(job, task, memory ? "out of memory" : String.valueOf(error.getMessage()));
            failures++;
            if (error instanceof StoreException) { // the next task would find the disk as full
                throw (StoreException) error;
            }
            waits.afterFailure();
            return;
        } catch (LinkageError error) { // this device has no such runtime, whatever the next task is
            giveBack(job, task, "the runtime " + task.runtime + " cannot be loaded: " + error.getMessage());
            throw error;
        }
        rounds++;
        waits.afterSuccess(receipt.wait);
    }

    private void giveBack(JobStore job, Task task, String reason) {
        job.finish();
        tell.tell(Event.of("failed", "round " + task.round + " of " + task.jobName + ": " + reason)
                .with("task", task.id));
        unload();
        try {
            server.sendFailure(task.id, reason.isEmpty() ? "failed" : reason);
        } catch (UnauthorizedException | UnreachableException error) {
            throw error;
        } catch (ServerException error) { // it took too long, and the task is nobody's any more
            tell.tell(Event.of("refused", error.getMessage()).with("task", task.id).with("code", error.code));
        }
    }

    // --- what a task needs ---

    /** The task's bundle with its runtime, left open from round to round. */
    private Workbench workbench(Task task) throws IOException {
        if (bench == null || !bench.isFor(task)) {
            unload();
            if (!task.runtime.equals(chosen.engine.name())) {
                throw new SpryException("the task is for the runtime " + task.runtime + ", this device offers "
                        + chosen.engine.name() + ": it goes back to the server, and another comes with the next look");
            }
            File folder = store.bundle(task.bundle);
            Bundle bundle = new Download(server, task.bundle, folder, tell).signedBy(publisher).fetch(task.runtime);
            bench = new Workbench(bundle, task.bundle, chosen.engine);
        }
        return bench;
    }

    /** Give back the memory of runtime, programs and tokenizer. */
    private void unload() {
        if (bench != null) {
            bench.close();
            bench = null;
        }
    }

    // --- prediction ---

    /** Predictions by the newest global weights that this device has, or by those that it trained itself. */
    public List<Prediction> predict(List<Example> texts, boolean personal) throws IOException {
        return new Predictor(store, chosen.engine).predict(chosen.job, texts, personal);
    }

    /** What a language model goes on with, piece by piece as it comes, by the weights that `predict` takes. */
    public void generate(String prompt, Wish wish, boolean personal, Generator.Pieces pieces) throws IOException {
        Trained trained = writing(personal);
        try (Workbench bench = new Workbench(trained.bundle, trained.about.bundle, chosen.engine)) {
            new Generator(bench.manifest, bench.tokenizer, bench.runner, trained.weights).text(prompt, wish, pieces);
        }
    }

    /** A conversation with a language model, by those weights; `system` is what it is told before all else, or null. */
    public Conversation chat(String system, boolean personal) throws IOException {
        Trained trained = writing(personal);
        Template template = Template.of(trained.bundle);
        template.require();
        Workbench bench = new Workbench(trained.bundle, trained.about.bundle, chosen.engine);
        try {
            Generator generator = new Generator(bench.manifest, bench.tokenizer, bench.runner, trained.weights);
            return new Conversation(generator, template, system, bench);
        } catch (RuntimeException error) {
            bench.close();
            throw error;
        }
    }

    private Trained writing(boolean personal) throws IOException {
        Trained trained = new Trained(store, chosen.job, personal);
        if (trained.bundle.manifest.generation == null) {
            throw new BundleException("the bundle of " + trained.about.name + " has no programs that generate text: "
                    + "export it with --task causal-lm --generate 512, and make a job of that");
        }
        return trained;
    }
}
