package dev.spry.core;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

import dev.spry.core.bundle.Chain;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Shape;
import dev.spry.core.data.Encoded;
import dev.spry.core.data.Encoder;
import dev.spry.core.data.Example;
import dev.spry.core.store.Store;
import dev.spry.core.training.Stepper;

/** Predictions on the device, by the newest weights that it has of a job. */
final class Predictor {
    private final Store store;
    private final Engine engine;
    private final Conditions conditions;

    /** `memory` is what there is for it, in bytes; null where nobody says. */
    Predictor(Store store, Engine engine, Conditions conditions) {
        this.store = store;
        this.engine = engine;
        this.conditions = conditions;
    }

    /** For texts, pairs, or questions with their contexts; `wanted` is a job's id or name; null: the last one. */
    List<Prediction> predict(String wanted, List<Example> texts, boolean personal) throws IOException {
        if (texts.isEmpty()) {
            return Collections.emptyList();
        }
        Trained trained = new Trained(store, wanted, personal);
        try (Workbench bench = new Workbench(trained.bundle, trained.about.bundle, engine, conditions.memory())) {
            return predicted(bench, texts, trained.weights, conditions.lowMemory());
        }
    }

    private static List<Prediction> predicted(
            Workbench bench, List<Example> texts, Map<String, Tensor> weights, boolean lowMemory) throws IOException {
        Manifest manifest = bench.manifest;
        Shape shape = fittingShape(manifest, texts.size());
        int directions = manifest.directions.isEmpty() ? 1 : manifest.directions.get(0);
        Chain chain = new Chain(manifest, bench.runner.runtime(), shape.batch, shape.length, directions);
        Stepper stepper = new Stepper(chain, bench.runner, lowMemory);
        Encoder encoder = bench.encoder(shape.batch, shape.length);
        List<Prediction> found = new ArrayList<>();
        for (int start = 0; start < texts.size(); start += shape.batch) {
            List<Example> part = texts.subList(start, Math.min(start + shape.batch, texts.size()));
            checkPairs(part, manifest.model.task);
            Encoded encoded = encoder.encode(part);
            Map<String, Tensor> values = stepper.values(encoded.tokens, encoded.labels, part.size(), weights);
            Tensor logits = stepper.forward(values, null, 0).get("logits");
            found.addAll(new Logits(logits, part, encoded, manifest.model.task).predictions(manifest, bench.tokenizer));
        }
        return found;
    }

    private static void checkPairs(List<Example> texts, String task) {
        for (Example text : texts) {
            if (task.equals("qa") && text.pair == null) {
                throw new SpryException("this job answers questions: give each with its context");
            }
        }
    }

    /** The longest texts, in a batch that so many examples fill. */
    private static Shape fittingShape(Manifest manifest, int examples) {
        int length = 0;
        for (Shape shape : manifest.shapes) {
            length = Math.max(length, shape.length);
        }
        Shape best = null;
        for (Shape shape : manifest.shapes) {
            if (shape.length == length && (best == null || isBetter(shape.batch, best.batch, examples))) {
                best = shape;
            }
        }
        if (best == null) {
            throw new ProgramInputException("the bundle has no programs; export it again");
        }
        return best;
    }

    /** The smallest batch that holds all examples, or else the largest. */
    private static boolean isBetter(int batch, int than, int examples) {
        return than < examples ? batch > than : batch >= examples && batch < than;
    }
}
