package dev.spry.core.generation;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONObject;

import dev.spry.core.ProgramRunner;
import dev.spry.core.WorkerRunner;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.numbers.Safetensors;
import dev.spry.core.text.Tokenizer;

/**
 * Writes by a bundle's model, one text after the other: `GenerateMain BUNDLE RUNTIME FOLDER`.
 *
 * <p>FOLDER holds weights.safetensors and cases.json, a list of {"prompt", "max_tokens", "temperature", "top_k", "top_p",
 * "repetition_penalty", "seed", "stop", "pieces"}; it gets texts.json. After so many pieces a text is left.
 */
final class GenerateMain {
    private GenerateMain() {}

    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[2]);
        JSONArray cases = new JSONArray(new String(read(folder, "cases.json"), StandardCharsets.UTF_8));
        Bundle bundle = Bundle.open(new File(arguments[0]), arguments[1]);
        JSONArray texts = new JSONArray();
        try (ProgramRunner runner = new WorkerRunner(bundle.folder, arguments[1])) {
            Generator generator = new Generator(bundle.manifest, Tokenizer.read(bundle.tokenizer()), runner,
                    Safetensors.parse(read(folder, "weights.safetensors")).tensors);
            for (int i = 0; i < cases.length(); i++) {
                texts.put(written(generator, cases.getJSONObject(i)));
            }
        }
        Files.write(new File(folder, "texts.json").toPath(), texts.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static String written(Generator generator, JSONObject given) throws Exception {
        GenerationConfig config = new GenerationConfig();
        config.maxTokens = given.optInt("max_tokens");
        config.sampling.temperature = given.optDouble("temperature", 0);
        config.sampling.topK = given.optInt("top_k");
        config.sampling.topP = given.optDouble("top_p", 1);
        config.sampling.repetitionPenalty = given.optDouble("repetition_penalty", 1);
        config.sampling.seed = given.has("seed") ? given.getLong("seed") : null;
        for (int i = 0; given.has("stop") && i < given.getJSONArray("stop").length(); i++) {
            config.stop.add(given.getJSONArray("stop").getString(i));
        }
        int most = given.optInt("pieces", Integer.MAX_VALUE);
        List<String> pieces = new ArrayList<>();
        generator.text(given.getString("prompt"), config, piece -> pieces.add(piece) && pieces.size() < most);
        return String.join("", pieces);
    }

    private static byte[] read(File folder, String name) throws Exception {
        return Files.readAllBytes(new File(folder, name).toPath());
    }
}
