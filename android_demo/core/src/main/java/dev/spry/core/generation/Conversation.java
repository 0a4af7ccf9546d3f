package dev.spry.core.generation;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import dev.spry.core.data.Message;
import dev.spry.core.data.Template;

/** What was said so far, and answers to what is said next, as the model's chat template has it. */
public final class Conversation implements Closeable {
    /** A part of the room that is left for an answer of unknown length. */
    private static final int ANSWER = 4;

    private final Generator generator;
    private final Template template;
    private final Closeable opened;
    private final int kept;
    private List<Message> messages = new ArrayList<>();
    private int forgotten;

    /** `system`: what the model is told before all else, or null; `opened` is closed with the conversation. */
    public Conversation(Generator generator, Template template, String system, Closeable opened) {
        template.require();
        this.generator = generator;
        this.template = template;
        this.opened = opened;
        if (system != null && !system.isEmpty()) {
            messages.add(new Message(Message.SYSTEM, system));
        }
        kept = messages.size();
    }

    /** All that was said and is not forgotten. */
    public List<Message> messages() {
        return Collections.unmodifiableList(messages);
    }

    /** Messages that had no room any more, the oldest. */
    public int forgotten() {
        return forgotten;
    }

    /**
     * Tells the answer piece by piece; the oldest messages but the system's make room. What cannot be answered changes
     * nothing.
     */
    public void answer(String said, GenerationConfig config, Generator.Pieces pieces) throws IOException {
        config.check();
        List<Message> asked = new ArrayList<>(messages);
        asked.add(new Message(Message.USER, said));
        int room = generator.length() - (config.maxTokens > 0 ? config.maxTokens : generator.length() / ANSWER);
        List<Integer> tokens = generator.encoded(template.asking(asked), false);
        while (tokens.size() > room && asked.size() > kept + 1) {
            asked.subList(kept, kept + 2).clear(); // a question and its answer
            tokens = generator.encoded(template.asking(asked), false);
        }
        generator.room(tokens.size(), config.maxTokens);
        forgotten += messages.size() + 1 - asked.size();
        messages = asked;
        StringBuilder answer = new StringBuilder();
        try {
            generator.text(tokens, config, piece -> {
                answer.append(piece);
                return pieces.said(piece);
            });
        } finally {
            messages.add(new Message(Message.ASSISTANT, answer.toString()));
        }
    }

    /** Gives the memory of runtime and tokenizer back. */
    @Override
    public void close() throws IOException {
        opened.close();
    }
}
