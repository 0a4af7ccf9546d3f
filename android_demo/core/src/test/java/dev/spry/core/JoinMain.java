package dev.spry.core;

import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.data.Example;
import dev.spry.core.data.FileSource;
import dev.spry.core.generation.Conversation;
import dev.spry.core.generation.GenerationConfig;
import dev.spry.core.wire.Trust;

/**
 * The client as a command of the JVM, as `spry join --json` is that of Python; its programs run in a worker process.
 *
 * <pre>
 * java … dev.spry.core.JoinMain --server URL --home DIR --data FILE [--token T] [--job J] [--name N] [--runtime R]
 *         [--holdout 0.1] [--max-memory BYTES] [--patience SECONDS] [--ca PEM] [--rounds N | --once yes]
 *         [--only-sums yes] [--engine CLASS]
 * java … dev.spry.core.JoinMain --server URL --home DIR --predict TEXT [--personal yes]
 * java … dev.spry.core.JoinMain --server URL --home DIR --chat "HELLO|AND THEN?" [--system TEXT] [--personal yes]
 *         [--max-tokens N] [--temperature T] [--seed S]
 * </pre>
 */
public final class JoinMain {
    private final Map<String, String> options = new HashMap<>();

    private JoinMain(String[] arguments) {
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i], arguments[i + 1]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        try {
            new JoinMain(arguments).run();
        } catch (SpryException error) {
            System.err.println("error: " + error.getMessage());
            Runtime.getRuntime().halt(2); // the hook below waits for this thread
        }
    }

    private void run() throws IOException, JSONException {
        try (Client client = opened()) {
            if (options.containsKey("--predict")) {
                predict(client);
                return;
            }
            if (options.containsKey("--chat")) {
                chat(client);
                return;
            }
            Thread training = Thread.currentThread();
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                client.stop();
                try {
                    training.join();
                } catch (InterruptedException error) {
                    return;
                }
            }));
            String rounds = options.get("--rounds");
            client.run(options.containsKey("--once") ? Client.ONCE
                    : rounds == null ? Client.ENDLESS : Integer.parseInt(rounds));
        }
    }

    private Client opened() {
        Conditions conditions = new Conditions(Machine.UNKNOWN);
        if (options.containsKey("--max-memory")) {
            conditions.maxMemory(Long.parseLong(options.get("--max-memory")));
        }
        conditions.lowMemory(options.containsKey("--low-memory"));
        Client.Builder client =
                new Client.Builder(new File(options.get("--home")), options.get("--server"), engine())
                        .token(options.get("--token"))
                        .job(options.get("--job"))
                        .name(options.getOrDefault("--name", "jvm"))
                        .holdout(Double.parseDouble(options.getOrDefault("--holdout", "0.1")))
                        .patience(Double.parseDouble(options.getOrDefault("--patience", "Infinity")))
                        .conditions(conditions)
                        .onlySums(options.containsKey("--only-sums"))
                        .tell(JoinMain::print);
        if (options.containsKey("--data")) {
            client.data(FileSource.of(new File(options.get("--data"))));
        }
        if (options.containsKey("--ca")) {
            client.trust(Trust.in(new File(options.get("--ca"))));
        }
        return client.open();
    }

    private void predict(Client client) throws IOException, JSONException {
        List<Example> texts = new ArrayList<>();
        for (String text : options.get("--predict").split("\\|")) {
            texts.add(new Example(text, null, 0));
        }
        for (Prediction found : client.predict(texts, options.containsKey("--personal"))) {
            JSONObject line = new JSONObject().put("label", found.label).put("scores", new JSONObject(found.scores));
            System.out.println(line);
        }
    }

    /** Each answer, and how many messages are forgotten by then. */
    private void chat(Client client) throws IOException, JSONException {
        GenerationConfig config = new GenerationConfig();
        config.maxTokens = Integer.parseInt(options.getOrDefault("--max-tokens", "0"));
        config.sampling.temperature = Double.parseDouble(options.getOrDefault("--temperature", "0"));
        config.sampling.seed = options.containsKey("--seed") ? Long.parseLong(options.get("--seed")) : null;
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        try (Conversation said = client.chat(options.get("--system"), options.containsKey("--personal"))) {
            for (String text : options.get("--chat").split("\\|")) {
                StringBuilder answer = new StringBuilder();
                said.answer(text, config, piece -> {
                    answer.append(piece);
                    return true;
                });
                out.println(new JSONObject().put("answer", answer).put("forgotten", said.forgotten()));
            }
        }
    }

    private static synchronized void print(Event event) {
        JSONObject line = new JSONObject(event.details);
        try {
            System.out.println(line.put("event", event.kind).put("message", event.message));
        } catch (JSONException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The worker, or a class that is named: the app's, for one. */
    private Engine engine() {
        if (!options.containsKey("--engine")) {
            return new Worker();
        }
        try {
            Constructor<?> made = Class.forName(options.get("--engine")).getDeclaredConstructor();
            made.setAccessible(true);
            return (Engine) made.newInstance();
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(error);
        }
    }

    /** Programs run by the Python package. */
    private final class Worker implements Engine {
        @Override
        public String name() {
            return options.getOrDefault("--runtime", "onnx");
        }

        @Override
        public ProgramRunner open(Bundle bundle) throws IOException {
            return new WorkerRunner(bundle.folder, name());
        }
    }
}
