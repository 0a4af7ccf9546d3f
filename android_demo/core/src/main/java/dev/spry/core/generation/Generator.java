package dev.spry.core.generation;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

import dev.spry.core.BundleException;
import dev.spry.core.ProgramInputException;
import dev.spry.core.ProgramRunner;
import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.text.Tokenizer;

/** Text that follows a prompt, as it comes; what two prompts begin with alike is read once. */
public final class Generator {
    private final Decoder decoder;
    private final Tokenizer tokenizer;
    private final List<Integer> ends;
    private final List<Integer> read = new ArrayList<>();

    /** Hears each piece of a text. */
    public interface Pieces {
        /** False ends the text here. */
        boolean said(String piece);
    }

    public Generator(Manifest manifest, Tokenizer tokenizer, ProgramRunner runner, Map<String, Tensor> weights) {
        decoder = new Decoder(manifest, runner, weights);
        this.tokenizer = tokenizer;
        ends = manifest.generation.ends;
        if (!tokenizer.spellsBytes()) {
            throw new BundleException("the bundle's tokenizer spells words, not bytes: this app writes no text with it");
        }
    }

    /** Tells the text that follows, piece by piece. */
    public void text(String prompt, GenerationConfig config, Pieces pieces) throws IOException {
        config.check();
        text(encoded(prompt, true), config, pieces);
    }

    /** The same, of a prompt's tokens. */
    void text(List<Integer> prompt, GenerationConfig config, Pieces pieces) throws IOException {
        List<Integer> tokens = new ArrayList<>(prompt);
        int left = room(tokens.size(), config.maxTokens);
        Sampler sampler = new Sampler(config.sampling);
        Detokenizer words = new Detokenizer(tokenizer);
        StopWords stops = new StopWords(config.stop);
        List<Integer> pending = unread(tokens);
        for (; left > 0; left--) {
            int token = sampler.choose(reading(pending), tokens);
            if (ends.contains(token)) {
                break;
            }
            if (!told(stops.add(words.add(token)), pieces) || stops.met()) {
                return;
            }
            tokens.add(token);
            pending = Collections.singletonList(token);
        }
        told(stops.add(words.flush()) + stops.flush(), pieces);
    }

    private static boolean told(String piece, Pieces pieces) {
        return piece.isEmpty() || pieces.said(piece);
    }

    /** Tokens of prompt and answer together that there is room for. */
    int length() {
        return decoder.length;
    }

    /** A prompt's tokens; `special` where the tokenizer adds those that begin a text, but none that end one. */
    List<Integer> encoded(String prompt, boolean special) {
        List<Integer> tokens = new ArrayList<>();
        for (int id : tokenizer.whole(prompt, special).ids) {
            tokens.add(id);
        }
        while (special && !tokens.isEmpty() && ends.contains(tokens.get(tokens.size() - 1))) {
            tokens.remove(tokens.size() - 1);
        }
        if (tokens.isEmpty()) {
            throw new ProgramInputException(
                    "the prompt has no tokens: '" + prompt + "'; write the beginning of a text, which the model continues");
        }
        return tokens;
    }

    /** How many tokens may follow a prompt. */
    int room(int prompt, int wanted) {
        int room = decoder.length + 1 - prompt; // the last is told, and read by nobody
        String has = "the prompt has " + prompt + " tokens";
        if (room <= 1) {
            throw new ProgramInputException(has + ", the bundle holds " + decoder.length
                    + " of prompt and answer: shorten it, or export with a larger --generate");
        }
        if (wanted > room) {
            throw new ProgramInputException(has + " and " + wanted + " more are asked for, the bundle holds "
                    + decoder.length + ": ask for fewer, shorten the prompt, or export with a larger --generate");
        }
        return wanted == 0 ? room : wanted;
    }

    /** What of a prompt was not read; the last token always, as what follows it is asked. */
    private List<Integer> unread(List<Integer> prompt) {
        int same = 0;
        while (same < Math.min(read.size(), prompt.size() - 1) && read.get(same).equals(prompt.get(same))) {
            same++;
        }
        decoder.keep(same);
        read.subList(same, read.size()).clear();
        return new ArrayList<>(prompt.subList(same, prompt.size()));
    }

    private float[] reading(List<Integer> tokens) throws IOException {
        float[] logits = decoder.read(tokens);
        read.addAll(tokens);
        return logits;
    }
}
