package dev.spry.core.text;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.BundleException;

/**
 * A bundle's tokenizer.json: WordPiece or byte-level BPE, with the tokens and places of the `tokenizers` library.
 *
 * <p>What a file asks for and this class does not know is refused when the file is read: tokens that differ from those
 * that the model was trained on would spoil training without a word.
 */
public final class Tokenizer {
    private final Normalizer normalizer;
    private final PreTokenizer preTokenizer;
    private final WordModel model;
    private final PostProcessor postProcessor;
    private final AddedTokens given;
    private final AddedTokens normalized;
    private final Map<Integer, String> names = new HashMap<>();
    private final Set<Integer> added = new HashSet<>();
    private final Set<Integer> special = new HashSet<>();
    private final boolean byteLevel;

    private Tokenizer(JSONObject json) throws JSONException {
        normalizer = Normalizer.of(json.optJSONObject("normalizer"));
        preTokenizer = PreTokenizer.of(json.optJSONObject("pre_tokenizer"));
        model = WordModel.of(json.getJSONObject("model"));
        postProcessor = new PostProcessor(json.optJSONObject("post_processor"));
        JSONArray extra = json.isNull("added_tokens") ? new JSONArray() : json.getJSONArray("added_tokens");
        given = new AddedTokens(extra, false, normalizer);
        normalized = new AddedTokens(extra, true, normalizer);
        byteLevel = model instanceof ByteLevelBpe;
        if (byteLevel && !String.valueOf(json.opt("pre_tokenizer")).contains("ByteLevel")) {
            throw unknown("BPE", "of characters", "BPE of bytes, with the pre-tokenizer ByteLevel");
        }
        JSONObject vocabulary = json.getJSONObject("model").getJSONObject("vocab");
        for (Iterator<String> tokens = vocabulary.keys(); tokens.hasNext(); ) {
            String token = tokens.next();
            names.put(vocabulary.getInt(token), token);
        }
        for (int i = 0; i < extra.length(); i++) {
            JSONObject one = extra.getJSONObject(i);
            names.put(one.getInt("id"), one.getString("content"));
            added.add(one.getInt("id"));
            if (one.optBoolean("special")) {
                special.add(one.getInt("id"));
            }
        }
    }

    /** The tokenizer in a file. */
    public static Tokenizer read(File path) throws IOException {
        return parse(new String(Files.readAllBytes(path.toPath()), StandardCharsets.UTF_8));
    }

    /** The tokenizer that a tokenizer.json describes. */
    public static Tokenizer parse(String json) {
        try {
            return new Tokenizer(new JSONObject(json));
        } catch (JSONException error) {
            throw damaged(error.getMessage());
        }
    }

    /** A text, or with `pair` two, in at most `length` tokens; of a pair the longer text is cut first. */
    public Encoding encode(String text, String pair, int length) {
        int room = length - postProcessor.added(pair != null);
        if (room < 0) {
            throw new IllegalArgumentException("the model's own tokens alone are more than " + length);
        }
        Encoding.Builder first = tokens(text);
        Encoding.Builder second = pair == null ? null : tokens(pair);
        if (second == null) {
            first.cutTo(room);
        } else if (first.size() + second.size() > room) {
            int shorter = Math.min(first.size(), second.size());
            int longer = shorter > room ? shorter : Math.max(shorter, room - shorter);
            if (shorter + longer > room) {
                shorter = room / 2;
                longer = shorter + room % 2;
            }
            boolean swapped = first.size() > second.size();
            first.cutTo(swapped ? longer : shorter);
            second.cutTo(swapped ? shorter : longer);
        }
        return postProcessor.join(first, second);
    }

    /** All tokens of a text; `special`: with those that the model wants around it. */
    public Encoding whole(String text, boolean special) {
        if (special) {
            return encode(text, null, Integer.MAX_VALUE);
        }
        return tokens(text).build();
    }

    /** Whether a token is one that a tokenizer puts around texts. */
    public boolean isSpecial(int id) {
        return special.contains(id);
    }

    /** A token as it is written in the vocabulary. */
    String token(int id) {
        return names.getOrDefault(id, "");
    }

    /** What a token says. */
    public String text(int id) {
        return byteLevel ? PreTokenizer.ByteLevel.read(token(id)) : token(id);
    }

    /** Whether tokens are pieces of a text's bytes. */
    public boolean spellsBytes() {
        return byteLevel;
    }

    /** What a token adds to a text, where tokens spell bytes; nothing of a special one. */
    public byte[] bytes(int id) {
        if (special.contains(id)) {
            return new byte[0];
        }
        return added.contains(id) ? token(id).getBytes(StandardCharsets.UTF_8) : PreTokenizer.ByteLevel.bytes(token(id));
    }

    private Encoding.Builder tokens(String text) {
        Encoding.Builder tokens = new Encoding.Builder();
        given.split(Text.of(text), new AddedTokens.Parts() {
            @Override
            public void token(int id, Text place) {
                tokens.add(id, place.start(0), place.end(place.length() - 1));
            }

            @Override
            public void between(Text part) {
                cut(normalizer.apply(part), tokens);
            }
        });
        postProcessor.narrow(tokens, this);
        return tokens;
    }

    private void cut(Text text, Encoding.Builder tokens) {
        List<Text> words = new ArrayList<>();
        normalized.split(text, new AddedTokens.Parts() {
            @Override
            public void token(int id, Text place) {
                tokens.add(id, place.start(0), place.end(place.length() - 1));
            }

            @Override
            public void between(Text part) {
                words.clear();
                preTokenizer.split(part, words);
                for (Text word : words) {
                    model.cut(word, tokens);
                }
            }
        });
    }

    // --- reading ---

    static Map<String, Integer> vocabulary(JSONObject described) throws JSONException {
        Map<String, Integer> found = new HashMap<>(2 * described.length());
        for (Iterator<String> tokens = described.keys(); tokens.hasNext(); ) {
            String token = tokens.next();
            found.put(token, described.getInt(token));
        }
        return found;
    }

    /** Refuses another value of a setting than the only one that this class knows. */
    static void expect(JSONObject described, String setting, String known) {
        String value = described.isNull(setting) ? known : String.valueOf(described.opt(setting));
        if (!value.equals(known)) {
            throw unknown(setting, value, known);
        }
    }

    static BundleException unknown(String what, String found, String known) {
        return new BundleException("the bundle's tokenizer has a " + what + " that this app does not know: " + found
                + "; it knows " + known + ". Take another model, or a newer version of the app");
    }

    static BundleException damaged(String why) {
        return new BundleException("the bundle's tokenizer.json is damaged (" + why + "); download the bundle again");
    }
}
