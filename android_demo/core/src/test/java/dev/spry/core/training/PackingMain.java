package dev.spry.core.training;

import java.io.File;
import java.io.PrintStream;

import org.json.JSONArray;
import org.json.JSONObject;

import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.data.Encoder;
import dev.spry.core.data.Examples;
import dev.spry.core.data.JsonlSource;
import dev.spry.core.text.Tokenizer;
import dev.spry.core.wire.TrainingSettings;

/**
 * Batches of a language model's rows for a comparison with Python: `PackingMain FOLDER SEED TRAINING`.
 *
 * <p>FOLDER is a bundle without programs, with rows.jsonl; TRAINING is the task's. A line of standard output is a batch of the
 * round: its number, how many sequences it has, and the tokens, mask and labels of all rows.
 */
final class PackingMain {
    private PackingMain() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        File folder = new File(arguments[0]);
        TrainingSettings training = new TrainingSettings(new JSONObject(arguments[2]));
        Bundle bundle = new Bundle(folder, Manifest.read(new File(folder, Manifest.FILE_NAME)));
        Tokenizer tokenizer = Tokenizer.read(bundle.tokenizer());
        Encoder encoder = new Encoder(tokenizer, bundle.manifest, training.batch, training.length);
        Examples examples = Examples.of(new JsonlSource(new File(folder, "rows.jsonl")), bundle, false);
        Batches batches = new Batches(PackedRows.taken(examples, encoder, training), Long.parseLong(arguments[1]));
        for (int step = 0; step < Training.stepsIn(training, batches.count()); step++) {
            Batch batch = batches.at(step);
            out.println(new JSONObject().put("number", batch.number).put("examples", batch.examples)
                    .put("input_ids", new JSONArray(batch.tokens.get("input_ids").longs()))
                    .put("attention_mask", new JSONArray(batch.tokens.get("attention_mask").longs()))
                    .put("labels", new JSONArray(batch.labels.longs())));
        }
        out.flush();
    }
}
