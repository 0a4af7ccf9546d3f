package dev.spry.core.data;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

import dev.spry.core.DataException;

/**
 * From rows to examples of a task.
 *
 * <pre>
 * seq-cls      text, label (a name or its number), and text_pair where a text comes in pairs
 * qa           question, context, answers: SQuAD's {"text": [...], "answer_start": [...]}, empty where there is none
 * causal-lm    messages, or prompt and completion, of which answers alone are learnt; or text; or what Shapes knows
 * </pre>
 */
final class Rows {
    private final String task;
    private final List<String> labels;
    private final Template template;

    Rows(String task, List<String> labels, Template template) {
        this.task = task;
        this.labels = labels;
        this.template = template;
    }

    Example example(JSONObject row) throws BadRow {
        switch (task) {
            case "qa":
                return question(row);
            case "causal-lm":
                return said(row);
            default:
                boolean paired = !row.isNull("text_pair") && !"".equals(row.opt("text_pair"));
                return new Example(string(row, "text"), paired ? string(row, "text_pair") : null, label(row));
        }
    }

    /** Refuses a row that is no example, as far as that is known without the bundle's template. */
    void require(JSONObject row) throws BadRow {
        if (!task.equals("causal-lm")) {
            example(row);
            return;
        }
        JSONObject known = Shapes.known(row, false);
        if (!known.isNull("messages")) {
            messages(known);
        } else if (known.has("completion")) {
            string(known, "prompt");
            string(known, "completion");
        } else {
            string(known, "text");
        }
    }

    private static List<Message> messages(JSONObject known) throws BadRow {
        JSONArray given = known.optJSONArray("messages");
        List<Message> said = new ArrayList<>();
        for (int i = 0; i < given.length(); i++) {
            said.add(message(i + 1, given.optJSONObject(i)));
        }
        return said;
    }

    private Example said(JSONObject row) throws BadRow {
        JSONObject known = Shapes.known(row, template.isThere);
        if (!known.isNull("messages")) {
            List<Message> said = messages(known);
            try {
                return template.example(said);
            } catch (DataException error) {
                throw new BadRow(error.getMessage());
            }
        }
        if (known.has("completion")) {
            String prompt = string(known, "prompt");
            String text = prompt + string(known, "completion") + template.end;
            int stop = text.codePointCount(0, text.length());
            return Example.learning(text, new int[][] {{prompt.codePointCount(0, prompt.length()), stop}}, false);
        }
        return new Example(string(known, "text"), null, 0);
    }

    private static Message message(int number, JSONObject given) throws BadRow {
        JSONObject fields = given == null ? new JSONObject() : given;
        for (String field : new String[] {"role", "content"}) {
            if (!said(number, fields, field).trim().isEmpty()) {
                string(fields, field);
            }
        }
        for (Iterator<String> names = fields.keys(); names.hasNext(); ) {
            String name = names.next();
            if (!name.equals("role") && !name.equals("content") && !fields.isNull(name)) {
                throw new BadRow("message " + number + " has " + name + " beside its role and content, and this app"
                        + " cannot tell what the chat template makes of it: leave it out");
            }
        }
        return new Message(fields.optString("role"), fields.optString("content"));
    }

    /** A message's field that must be a text. */
    static String said(int number, JSONObject fields, String field) throws BadRow {
        Object text = fields.opt(field);
        if (!(text instanceof String)) {
            throw new BadRow("message " + number + " must have a " + field + " that is a text, got "
                    + (text == null ? "none" : text.getClass().getSimpleName()));
        }
        return (String) text;
    }

    /** A row's field that must be a text with something in it. */
    static String string(JSONObject row, String field) throws BadRow {
        Object value = row.opt(field);
        if (value == null || value == JSONObject.NULL) {
            throw new BadRow("has no " + field + "; its fields are " + fields(row));
        }
        if (!(value instanceof String)) {
            throw new BadRow(field + " must be a text, got " + value.getClass().getSimpleName());
        }
        String text = (String) value;
        if (text.trim().isEmpty()) {
            throw new BadRow(field + " is empty");
        }
        for (int character : text.codePoints().toArray()) {
            if (character >= 0xD800 && character <= 0xDFFF) {
                throw new BadRow(field + " holds half of a surrogate pair, which is no text");
            }
        }
        return text;
    }

    private int label(JSONObject row) throws BadRow {
        Object value = row.opt("label");
        if ("".equals(value)) {
            throw new BadRow("label is empty");
        }
        if (value == null || value == JSONObject.NULL) {
            throw new BadRow("has no label; its fields are " + fields(row));
        }
        if (value instanceof String || value instanceof Boolean) {
            int named = labels.indexOf(value.toString().trim());
            if (named >= 0) {
                return named;
            }
        }
        String written = value.toString().trim();
        if (!(value instanceof Double) && written.matches("[0-9]{1,9}") && Integer.parseInt(written) < labels.size()) {
            return Integer.parseInt(written);
        }
        String shown = written.length() > 80 ? written.substring(0, 80) : written;
        throw new UnknownLabel(shown, "unknown label '" + shown + "'; the job's labels are "
                + (labels.isEmpty() ? "none" : String.join(", ", labels)) + " (or 0 to " + (labels.size() - 1) + ")");
    }

    private static Example question(JSONObject row) throws BadRow {
        String question = string(row, "question");
        String context = string(row, "context");
        List<String> answers = new ArrayList<>();
        int start = 0;
        try {
            JSONObject found = row.isNull("answers") ? new JSONObject() : row.getJSONObject("answers");
            JSONArray texts = found.isNull("text") ? new JSONArray() : found.getJSONArray("text");
            JSONArray starts = found.isNull("answer_start") ? new JSONArray() : found.getJSONArray("answer_start");
            if (texts.length() != starts.length()) {
                throw new BadRow("answers must have a text and a position from 0 on each");
            }
            for (int i = 0; i < texts.length(); i++) {
                answers.add(texts.getString(i));
                start = i == 0 ? starts.getInt(i) : start;
            }
        } catch (JSONException error) {
            throw new BadRow(
                    "answers must look like {\"text\": [\"...\"], \"answer_start\": [0]}: " + error.getMessage());
        }
        if (answers.isEmpty() || answers.get(0).isEmpty()) {
            return new Example(question, context, 0, null, 0, Collections.emptyList());
        }
        String answer = answers.get(0);
        if (start < 0 || start > context.codePointCount(0, context.length())
                || !context.startsWith(answer, context.offsetByCodePoints(0, start))) {
            throw new BadRow("the answer '" + answer + "' is not at position " + start + " of its context");
        }
        return new Example(question, context, 0, answer, start, Collections.unmodifiableList(answers));
    }

    private static String fields(JSONObject row) {
        List<String> names = new ArrayList<>();
        for (Iterator<String> all = row.keys(); all.hasNext(); ) {
            names.add(all.next());
        }
        return names.isEmpty() ? "none" : String.join(", ", names);
    }
}
