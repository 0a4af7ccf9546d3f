package dev.spry.core.data;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.BundleException;
import dev.spry.core.DataException;
import dev.spry.core.bundle.Bundle;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.bundle.Turns;

/**
 * Conversations as one text, as a model's chat template has them.
 *
 * <p>The template itself is a program that this app does not run: an export tells in plain words what stands around
 * messages, where the template does no more.
 */
public final class Template {
    private static final String INSTEAD =
            ": give rows with prompt and completion, go on with a text, or take a Python client";

    /** What ends a text that is complete; empty where the tokenizer has no such token. */
    final String end;
    /** Whether the tokenizer has one, known to this app or not. */
    final boolean isThere;
    private final Turns turns;
    private final String missing;

    /** Where a bundle has none, or `turns` is null, `missing` says why. */
    Template(boolean isThere, Turns turns, String end, String missing) {
        this.isThere = isThere;
        this.turns = turns;
        this.end = end;
        this.missing = missing;
    }

    /** That of a bundle. */
    public static Template of(Bundle bundle) throws IOException {
        Manifest manifest = bundle.manifest;
        JSONObject fields = new JSONObject();
        if (manifest.chatTemplate != null) {
            File path = Bundle.file(bundle.folder, manifest.chatTemplate);
            try {
                fields = new JSONObject(new String(Files.readAllBytes(path.toPath()), StandardCharsets.UTF_8));
            } catch (JSONException error) {
                throw new BundleException(
                        path + " cannot be read as a chat template (" + error.getMessage() + "); copy the bundle again");
            }
        }
        boolean isThere = !fields.optString("chat_template").isEmpty();
        return new Template(isThere, manifest.turns, fields.optString("eos_token"), missing(manifest, fields));
    }

    private static String missing(Manifest manifest, JSONObject fields) {
        if (manifest.turns != null) {
            return null;
        }
        if (fields.optString("chat_template").isEmpty()) {
            return "the bundle's tokenizer has no chat template, so messages cannot be read" + INSTEAD;
        }
        if (!manifest.tellsTurns()) {
            return "the bundle was exported before this app could be told of its chat template: export it again";
        }
        return "the chat template does more than put words around messages, and this app does not run it" + INSTEAD;
    }

    /** Refuses a bundle whose conversations this app cannot write. */
    public void require() {
        if (turns == null) {
            throw new DataException(missing);
        }
    }

    /** Of a conversation, up to where the next answer begins; it has all special tokens in it. */
    public String asking(List<Message> messages) {
        return written(messages, true, new ArrayList<>());
    }

    /** What is learnt of a conversation: its answers, each with what ends it. */
    Example example(List<Message> messages) {
        List<int[]> spans = new ArrayList<>();
        String text = written(messages, false, spans);
        if (spans.isEmpty()) {
            throw new DataException(
                    "has no message of the role 'assistant': there is nothing to learn; add the answer");
        }
        if (turns.answers == null) {
            throw new DataException("the chat template writes answers now in one way and now in another, so what of"
                    + " them is learnt is not known" + INSTEAD);
        }
        int before = count(Today.in(turns.answers.get(0)));
        int behind = count(Today.in(turns.answers.get(1)));
        int[][] learnt = new int[spans.size()][];
        for (int i = 0; i < learnt.length; i++) {
            int[] span = spans.get(i);
            learnt[i] = new int[] {span[2] < 0 ? span[0] - before : span[2], span[1] + behind};
            if (learnt[i][0] >= learnt[i][1]) {
                throw new DataException("an answer of the conversation has nothing in it to learn: add its words");
            }
        }
        return Example.learning(text, learnt, true);
    }

    /**
     * The text; `answers` gets where each answer's own words stand, in Unicode characters.
     *
     * <p>And where it begins for who asked for it, which may be within its thoughts; -1 where that says nothing.
     */
    private String written(List<Message> messages, boolean asks, List<int[]> answers) {
        require();
        StringBuilder text = new StringBuilder();
        String last = Turns.EDGE;
        int number = 0;
        for (Message message : messages) {
            number++;
            int end = text.length();
            text.append(between(last, message.role, number));
            int start = text.codePointCount(0, text.length());
            String content = content(message, number == messages.size());
            text.append(content);
            if (message.role.equals(Message.ASSISTANT)) {
                answers.add(new int[] {start, start + count(content), asked(text, end)});
            }
            last = message.role;
        }
        return text.append(asks ? Today.in(turns.asking) : between(last, Turns.EDGE, number)).toString();
    }

    private String content(Message message, boolean last) {
        String content = message.content;
        if (turns.thoughts != null && message.role.equals(Message.ASSISTANT)) {
            content = turns.thoughts.written(content, last);
        }
        return turns.trimmed.contains(message.role) ? stripped(content) : content;
    }

    private int asked(StringBuilder text, int end) {
        String asking = Today.in(turns.asking);
        boolean begins = turns.thoughts != null && text.indexOf(asking, end) == end;
        return begins ? text.codePointCount(0, end + asking.length()) : -1;
    }

    private String between(String last, String role, int number) {
        String found = turns.between(last, role);
        if (found == null) {
            String what = role.isEmpty() ? "the end" : "'" + role + "'";
            String where = last.isEmpty() ? "the beginning" : "'" + last + "'";
            throw new DataException("message " + number + ": " + what + " behind " + where
                    + " is more than this app knows of the chat template; correct the roles and their order");
        }
        return Today.in(found);
    }

    private static int count(String text) {
        return text.codePointCount(0, text.length());
    }

    /** Without white space at either end: what Python's `strip` takes. */
    static String stripped(String text) {
        int start = 0;
        int stop = text.length();
        while (start < stop && isSpace(text.charAt(start))) {
            start++;
        }
        while (stop > start && isSpace(text.charAt(stop - 1))) {
            stop--;
        }
        return text.substring(start, stop);
    }

    private static boolean isSpace(char one) {
        return one >= 0x9 && one <= 0xD || one >= 0x1C && one <= 0x20 || one == 0x85 || one == 0xA0 || one == 0x1680
                || one >= 0x2000 && one <= 0x200A || one == 0x2028 || one == 0x2029 || one == 0x202F || one == 0x205F
                || one == 0x3000;
    }
}
