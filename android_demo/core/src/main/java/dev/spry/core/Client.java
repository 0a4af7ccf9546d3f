package dev.spry.core;

import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.util.Calendar;
import java.util.List;

import javax.net.ssl.SSLSocketFactory;

import dev.spry.core.bundle.Keys;
import dev.spry.core.data.Example;
import dev.spry.core.data.Source;
import dev.spry.core.data.Template;
import dev.spry.core.generation.Conversation;
import dev.spry.core.generation.Generator;
import dev.spry.core.generation.GenerationConfig;
import dev.spry.core.store.Store;
import dev.spry.core.wire.CheckedIn;
import dev.spry.core.wire.Server;

/**
 * A device on one server: enrols once, then takes part in rounds for as long as it runs.
 *
 * <pre>
 * Client client = new Client.Builder(home, "https://spry.example.org", engine)
 *         .token("…").data(FileSource.of(file)).tell(event -> …).open();
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
    private final Workshop workshop;
    private final CheckIns checkIns;
    private final Attempts attempts;

    private Client(Builder chosen) {
        this.chosen = chosen;
        tell = chosen.tell;
        data = new OwnData(chosen.source, chosen.skipBadRows, chosen.holdout, tell);
        waits = new Waits(chosen.pause, chosen.longestWait, tell, this::unload);
        store = new Store(chosen.home, chosen.server, tell);
        publisher = publisher();
        server = new Server.Builder(chosen.server)
                .pause(waits::pause).tell(tell).trust(chosen.trust).patience(chosen.patience).open();
        workshop = new Workshop(server, store, chosen.engine, publisher, tell);
        Fitness fitness = new Fitness(data, chosen.job, tell);
        checkIns = new CheckIns(
                server, store, chosen.engine, chosen.conditions, fitness, chosen.job, chosen.onlySums);
        attempts = new Attempts(server, store, data, workshop, checkIns, waits, tell);
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
        attempts.countAnew();
        server.warnIfOpen();
        checkIns.rows = data.count();
        boolean ended = false;
        try (Store.Lock locked = store.lock()) {
            if (publisher != null) {
                store.pin(publisher);
            }
            new Enrolment(server, store, tell).enrol(chosen.token, chosen.name);
            attempts.sendLeftOver();
            boolean wentOn = true;
            while (wanted == ONCE ? wentOn && attempts.areNone() : wanted == ENDLESS || attempts.rounds() < wanted) {
                wentOn = turn();
            }
        } catch (Stopped stop) {
            ended = true;
            tell.tell(Event.of("stopped", stop.getMessage()));
        } finally {
            unload();
        }
        return attempts.done(ended);
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

    /** One check-in and what comes of it; false when there was nothing to do. */
    private boolean turn() throws IOException {
        waits.checkStopped();
        Conditions.Refusal refusal = chosen.conditions.refusal(Calendar.getInstance());
        if (refusal != null) {
            waits.await(refusal.seconds, refusal.reason, Waits.MOST_LATE);
            return false;
        }
        CheckedIn answer = checkIns.look();
        if (answer.task == null) {
            if (checkIns.fitNone()) {
                attempts.countFailure();
            }
            waits.await(answer.wait, answer.reason);
            return false;
        }
        attempts.take(answer.task);
        return true;
    }

    /** Give back the memory of runtime, programs and tokenizer. */
    private void unload() {
        workshop.close();
    }

    // --- prediction ---

    /** Predictions by the newest global weights that this device has, or by those that it trained itself. */
    public List<Prediction> predict(List<Example> texts, boolean personal) throws IOException {
        return new Predictor(store, chosen.engine, chosen.conditions).predict(chosen.job, texts, personal);
    }

    /** What a language model goes on with, piece by piece as it comes, by the weights that `predict` takes. */
    public void generate(String prompt, GenerationConfig config, boolean personal, Generator.Pieces pieces) throws IOException {
        Trained trained = writing(personal);
        try (Workbench bench = bench(trained)) {
            new Generator(bench.manifest, bench.tokenizer, bench.runner, trained.weights).text(prompt, config, pieces);
        }
    }

    /** A conversation with a language model, by those weights; `system` is what it is told before all else, or null. */
    public Conversation chat(String system, boolean personal) throws IOException {
        Trained trained = writing(personal);
        Template template = Template.of(trained.bundle);
        template.require();
        Workbench bench = bench(trained);
        try {
            Generator generator = new Generator(bench.manifest, bench.tokenizer, bench.runner, trained.weights);
            return new Conversation(generator, template, system, bench);
        } catch (RuntimeException error) {
            bench.close();
            throw error;
        }
    }

    private Workbench bench(Trained trained) throws IOException {
        return new Workbench(trained.bundle, trained.about.bundle, chosen.engine, chosen.conditions.memory());
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
