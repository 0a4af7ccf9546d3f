package dev.spry.core;

import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.numbers.Safetensors;
import dev.spry.core.store.Disk;

/** A bundle of a chain without blocks: files by their paths, and the manifest that vouches for them. */
public final class TinyBundle {
    public final Map<String, byte[]> files = new LinkedHashMap<>();
    private final JSONObject manifest;

    public TinyBundle() throws JSONException {
        byte[] program = new byte[50_000];
        new Random(5).nextBytes(program);
        Tensor value = Tensor.of(new float[] {1, 2, 3}, 3);
        files.put("executorch/head.pte", program);
        files.put("onnx/head.onnx", new byte[] {1, 2, 3});
        files.put("tokenizer.json", ("{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\","
                + "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, \"vocab\": {\"[UNK]\": 0}},"
                + "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}}").getBytes(StandardCharsets.UTF_8));
        files.put("adapter/adapter_model.safetensors",
                new Safetensors(Collections.singletonMap("head.bias", value), Collections.emptyMap()).encoded());
        JSONArray none = new JSONArray();
        JSONObject runtimes = new JSONObject();
        runtimes.put("executorch", runtime("executorch/head.pte")).put("onnx", runtime("onnx/head.onnx"));
        manifest = new JSONObject()
                .put("schema", 1).put("made_by", "a test")
                .put("model", new JSONObject().put("name", "m").put("architecture", "a").put("task", "seq-cls")
                        .put("labels", new JSONArray().put("no").put("yes")).put("blocks", 0).put("parameters", 3))
                .put("adapter", new JSONObject().put("method", "lora").put("config", new JSONObject())
                        .put("file", "adapter/adapter_model.safetensors"))
                .put("inputs", new JSONArray().put("input_ids")).put("units", none)
                .put("head", new JSONArray().put(
                        new JSONObject().put("name", "head.bias").put("shape", new JSONArray().put(3))))
                .put("segments", new JSONArray().put(segment("embed")).put(segment("head")))
                .put("shapes", none).put("directions", none).put("tokenizer", "tokenizer.json").put("pad_token_id", 0)
                .put("runtimes", runtimes).put("verification", none);
    }

    /** The same with a program for ExecuTorch, and what came of it: a loss for each of two examples, all of this size. */
    public TinyBundle tried(double size) throws JSONException {
        JSONArray shape = new JSONArray().put(2);
        JSONObject loss = new JSONObject().put("name", "loss").put("dtype", "float32").put("shape", shape);
        JSONObject program = new JSONObject()
                .put("kind", "plain").put("segment", "head").put("batch", 2).put("length", 4).put("directions", 0)
                .put("file", "executorch/head.pte").put("method", "").put("inputs", new JSONArray())
                .put("outputs", new JSONArray().put(loss))
                .put("flops", 1).put("load_bytes", 1).put("peak_bytes", 1);
        JSONObject outcome = new JSONObject()
                .put("size", size).put("samples", new JSONArray().put(size).put(size));
        JSONObject trial = new JSONObject()
                .put("program", "head.plain [2x4]").put("bound", 1e-3).put("outcomes", new JSONArray().put(outcome));
        manifest.getJSONObject("runtimes").getJSONObject("executorch")
                .put("programs", new JSONArray().put(program)).put("trials", new JSONArray().put(trial));
        return this;
    }

    private static JSONObject segment(String name) throws JSONException {
        return new JSONObject().put("name", name).put("first_block", 0).put("last_block", 0);
    }

    private static JSONObject runtime(String file) throws JSONException {
        return new JSONObject().put("precision", "none").put("versions", new JSONObject())
                .put("programs", new JSONArray()).put("weights_bytes", 0).put("files", new JSONArray().put(file));
    }

    /** What the manifest says of its files; a value in `changed` stands in for what is true of a file. */
    public byte[] manifest(String path, String field, Object value) throws JSONException {
        JSONArray listed = new JSONArray();
        for (Map.Entry<String, byte[]> file : files.entrySet()) {
            String digest = Disk.hex(Disk.sha256().digest(file.getValue()));
            JSONObject about = new JSONObject()
                    .put("path", file.getKey()).put("sha256", digest).put("bytes", file.getValue().length);
            listed.put(file.getKey().equals(path) ? about.put(field, value) : about);
        }
        return new JSONObject(manifest.toString()).put("files", listed).toString().getBytes(StandardCharsets.UTF_8);
    }

    public byte[] manifest() throws JSONException {
        return manifest("", "", "");
    }
}
