package dev.spry.core.bundle;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.BundleException;

/**
 * What a bundle says about itself: manifest.json.
 *
 * <p>Fields may be added without a new schema, and readers ignore those they do not know; the schema's number rises
 * when an older reader would misunderstand the file.
 */
public final class Manifest {
    /** The newest that is read: 2 has units whose tangents enter at a bottleneck. */
    public static final int SCHEMA = 2;
    public static final String FILE_NAME = "manifest.json";
    /** Bytes; no manifest has more. */
    public static final int LARGEST = 64 << 20;
    /** The first and the last segment of every chain; between them block.0, block.1, … */
    public static final String EMBED = "embed";
    public static final String HEAD = "head";
    /** Label of a token or span that does not count, as in Hugging Face. */
    public static final int IGNORED = -100;

    /** Whether the export looked for the words of a chat template. */
    private boolean tellsTurns;

    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String madeBy;
    public final Model model;
    public final Adapter adapter;
    /** The token inputs in order: `input_ids`, `attention_mask`, … */
    public final List<String> inputs;
    public final List<Unit> units;
    public final List<Parameter> head;
    public final List<Segment> segments;
    /** (batch, length) pairs for which there are programs. */
    public final List<Shape> shapes;
    /** Values of K for which there are programs. */
    public final List<Integer> directions;
    /** The path of `tokenizer.json`. */
    public final String tokenizer;
    public final int padTokenId;
    public final Map<String, RuntimeSpec> runtimes;
    public final List<FileSpec> files;
    /** The measured layer; null where no linear layer of the head computes the logits. */
    public final Features features;
    /** The path of the tokenizer's chat template and special tokens; of language models alone. */
    public final String chatTemplate;
    /** The chat template for readers that have no Jinja; null where it does more than write words around messages. */
    public final Turns turns;
    /** The generation's settings; null where the bundle has no programs that generate. */
    public final Generation generation;

    private Manifest(JSONObject json) throws JSONException {
        madeBy = json.getString("made_by");
        model = new Model(json.getJSONObject("model"));
        adapter = new Adapter(json.getJSONObject("adapter"));
        inputs = Json.strings(json.getJSONArray("inputs"));
        units = Json.list(json.getJSONArray("units"), Unit::new);
        head = Json.list(json.getJSONArray("head"), Parameter::new);
        segments = Json.list(json.getJSONArray("segments"), Segment::new);
        shapes = Json.arrays(json.getJSONArray("shapes"), Shape::new);
        directions = Json.integers(json.getJSONArray("directions"));
        tokenizer = json.isNull("tokenizer") ? null : json.getString("tokenizer");
        padTokenId = json.getInt("pad_token_id");
        runtimes = Json.map(json.getJSONObject("runtimes"), (map, key) -> new RuntimeSpec(map.getJSONObject(key)));
        files = Json.list(json.getJSONArray("files"), FileSpec::new);
        features = json.isNull("features") ? null : new Features(json.getJSONObject("features"));
        chatTemplate = json.isNull("chat_template") ? null : json.getString("chat_template");
        turns = json.isNull("turns") ? null : new Turns(json.getJSONObject("turns"));
        generation = json.isNull("generation") ? null : new Generation(json.getJSONObject("generation"));
    }

    // --- by hand ---

    public boolean tellsTurns() {
        return tellsTurns;
    }

    /** The manifest in a file. */
    public static Manifest read(File path) throws IOException {
        try {
            return parse(Files.readAllBytes(path.toPath()), path.toString());
        } catch (NoSuchFileException | FileNotFoundException missing) {
            throw new BundleException(path + " does not exist; get the bundle again");
        }
    }

    /** The manifest in `data`; `where` names it in errors. */
    public static Manifest parse(byte[] data, String where) {
        JSONObject json;
        try {
            json = new JSONObject(new String(data, StandardCharsets.UTF_8));
        } catch (JSONException error) {
            throw new BundleException(where + " is damaged (" + error.getMessage() + "); download the bundle again");
        }
        try {
            checkSchema(json.getInt("schema"), where);
            Manifest manifest = new Manifest(json);
            manifest.tellsTurns = json.has("turns");
            manifest.checkReferences(where);
            return manifest;
        } catch (JSONException | ArithmeticException error) {
            throw new BundleException(where + " is not a manifest of schema " + SCHEMA + ": " + error.getMessage()
                    + "; export the bundle again");
        }
    }

    /** What a runtime has in this bundle. */
    public RuntimeSpec runtime(String name) {
        RuntimeSpec found = runtimes.get(name);
        if (found == null) {
            throw new BundleException("the bundle has no programs for " + name + "; it has " + told(runtimes.keySet()));
        }
        return found;
    }

    /** The unit of a number. */
    public Unit unit(int number) {
        if (number < 0 || number >= units.size()) {
            throw new BundleException(
                    "the bundle has no unit " + number + "; it has " + units.size() + ", numbered from 0");
        }
        return units.get(number);
    }

    /** All parameters: the units' in order, then the head's. */
    public List<Parameter> parameters() {
        List<Parameter> found = new ArrayList<>();
        for (Unit unit : units) {
            found.addAll(unit.parameters);
        }
        found.addAll(head);
        return found;
    }

    /** The units whose tangents enter at a bottleneck, by the name of what is trained. */
    public Map<String, Unit> bottlenecks() {
        Map<String, Unit> found = new LinkedHashMap<>();
        for (Unit unit : units) {
            if (unit.atBottleneck()) {
                found.put(unit.parameters.get(0).name, unit);
            }
        }
        return found;
    }

    /** The names of the head's parameters. */
    public Set<String> headNames() {
        Set<String> names = new LinkedHashSet<>();
        for (Parameter parameter : head) {
            names.add(parameter.name);
        }
        return names;
    }

    /** The head's parameters before the layer that gives the logits, where that layer's features are known. */
    public Set<String> beforeLogits() {
        Set<String> names = headNames();
        names.removeAll(features == null ? names : Arrays.asList(features.weight, features.bias));
        return names;
    }

    // --- reading ---

    private static void checkSchema(int schema, String where) {
        if (schema > SCHEMA) {
            throw new BundleException(where + " has schema " + schema + ", but this version of spry reads up to "
                    + SCHEMA + ": upgrade the app, or export the bundle with an older version");
        }
        if (schema < 1) {
            throw new BundleException(
                    where + " has schema " + schema + "; expected 1 to " + SCHEMA + ": export the bundle again");
        }
    }

    /** Everything a manifest names must be in it. */
    private void checkReferences(String where) {
        Set<String> names = new LinkedHashSet<>();
        for (Segment segment : segments) {
            names.add(segment.name);
        }
        if (segments.size() < 2 || names.size() != segments.size() || !segments.get(0).name.equals(EMBED)
                || !segments.get(segments.size() - 1).name.equals(HEAD)) {
            throw new BundleException(where + ": segments must go from " + EMBED + " to " + HEAD
                    + ", each once; found " + told(names));
        }
        Set<String> paths = new HashSet<>();
        for (FileSpec file : files) {
            if (!paths.add(file.path)) {
                throw new BundleException(where + " lists a file twice; export the bundle again");
            }
        }
        for (Unit unit : units) {
            require(where, "segments", names, "unit " + unit.name, unit.segments);
        }
        for (Map.Entry<String, RuntimeSpec> runtime : runtimes.entrySet()) {
            require(where, "files", paths, "runtime " + runtime.getKey(), runtime.getValue().files);
            for (ProgramSpec program : runtime.getValue().allPrograms()) {
                String owner = "program " + program.name();
                require(where, "segments", names, owner, Collections.singletonList(program.segment));
                require(where, "files", paths, owner, Collections.singletonList(program.file));
            }
        }
        require(where, "files", paths, "the adapter", Collections.singletonList(adapter.file));
        if (tokenizer != null) {
            require(where, "files", paths, "the tokenizer", Collections.singletonList(tokenizer));
        }
        if (chatTemplate != null) {
            require(where, "files", paths, "the chat template", Collections.singletonList(chatTemplate));
        }
    }

    private static void require(String where, String what, Set<String> known, String owner, List<String> named) {
        for (String name : named) {
            if (!known.contains(name)) {
                throw new BundleException(where + ": " + owner + " names '" + name
                        + "', which is not among the manifest's " + what + "; export again");
            }
        }
    }

    private static String told(Collection<String> names) {
        return names.isEmpty() ? "none" : String.join(", ", names);
    }
}
