package dev.spry.core.data;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * The shapes that rows of language models have, ours and those of other programs, and what we know them as.
 *
 * <pre>
 * messages, conversations or conversation, of role and content, or of from and value       messages
 * prompt and completion                                                                    itself
 * instruction with output or response, and perhaps input or context                        a question with its answer
 * text                                                                                     itself
 * prompt or query with response, prompt with output, question with answer                  a question with its answer
 * </pre>
 *
 * <p>A question with its answer is two messages where the tokenizer has a chat template, else prompt and completion with
 * a blank line between them. The first shape that fits counts; Python's `edge_client/data/conversations.py` has the same.
 */
final class Shapes {
    private enum Form { MESSAGES, COMPLETION, PAIR, TEXT }

    private static final Shape[] ALL = {
        new Shape(Form.MESSAGES, "messages"),
        new Shape(Form.COMPLETION, "prompt", "completion"),
        new Shape(Form.MESSAGES, "conversations"),
        new Shape(Form.MESSAGES, "conversation"),
        new Shape(Form.PAIR, "instruction", "output").beside("input", "context"),
        new Shape(Form.PAIR, "instruction", "response").beside("input", "context"),
        new Shape(Form.TEXT, "text"),
        new Shape(Form.PAIR, "prompt", "response"),
        new Shape(Form.PAIR, "prompt", "output"),
        new Shape(Form.PAIR, "query", "response"),
        new Shape(Form.PAIR, "question", "answer").never("context"),
    };
    private static final String[] SPEAKERS = {"human", "user", "gpt", "assistant", "chatgpt", "bot", "model", "system"};
    private static final Map<String, String> ROLES = new HashMap<>();
    private static final String BETWEEN = "\n\n";

    static {
        for (String speaker : SPEAKERS) {
            ROLES.put(speaker, Message.ASSISTANT);
        }
        ROLES.put("human", Message.USER);
        ROLES.put("user", Message.USER);
        ROLES.put("system", Message.SYSTEM);
    }

    private Shapes() {}

    /** The row as messages, as prompt and completion, or as text; one of no shape as it is. */
    static JSONObject known(JSONObject row, boolean hasTemplate) throws BadRow {
        Shape shape = of(row);
        if (shape == null) {
            refuseHalf(row);
            return row;
        }
        try {
            switch (shape.form) {
                case MESSAGES:
                    return new JSONObject().put("messages", messages(row.opt(shape.fields[0]), shape.fields[0]));
                case PAIR:
                    return pair(row, shape, hasTemplate);
                default:
                    JSONObject known = new JSONObject();
                    for (String field : shape.fields) {
                        known.put(field, row.opt(field));
                    }
                    return known;
            }
        } catch (JSONException impossible) {
            throw new AssertionError(impossible); // names and values are there
        }
    }

    private static Shape of(JSONObject row) {
        for (Shape shape : ALL) {
            if (shape.isOf(row)) {
                return shape;
            }
        }
        return null;
    }

    private static JSONObject pair(JSONObject row, Shape shape, boolean hasTemplate) throws BadRow, JSONException {
        StringBuilder asked = new StringBuilder(Rows.string(row, shape.fields[0]));
        for (String field : shape.beside) {
            Object value = row.isNull(field) ? "" : row.opt(field);
            if (!(value instanceof String) || !Template.stripped((String) value).isEmpty()) {
                asked.append(BETWEEN).append(Rows.string(row, field));
            }
        }
        String answer = Rows.string(row, shape.fields[1]);
        if (hasTemplate) {
            JSONArray both = new JSONArray();
            return new JSONObject().put("messages",
                    both.put(message(Message.USER, asked.toString())).put(message(Message.ASSISTANT, answer)));
        }
        return new JSONObject().put("prompt", asked + BETWEEN).put("completion", answer);
    }

    private static JSONArray messages(Object value, String field) throws BadRow, JSONException {
        Object found = value;
        if (value instanceof String) {
            try {
                found = new JSONArray((String) value);
            } catch (JSONException error) {
                throw new BadRow(field + " is not JSON: " + error.getMessage());
            }
        }
        if (!(found instanceof JSONArray) || ((JSONArray) found).length() == 0) {
            throw new BadRow(
                    field + " must look like [{\"role\": \"user\", \"content\": \"...\"}], got '" + found + "'");
        }
        JSONArray messages = new JSONArray();
        for (int i = 0; i < ((JSONArray) found).length(); i++) {
            Object one = ((JSONArray) found).opt(i);
            boolean isOther = one instanceof JSONObject && ((JSONObject) one).has("from")
                    && !((JSONObject) one).has("role");
            messages.put(isOther ? spoken(i + 1, (JSONObject) one) : one);
        }
        return messages;
    }

    /** One of from and value by role and content. */
    private static JSONObject spoken(int number, JSONObject given) throws BadRow, JSONException {
        String from = Rows.said(number, given, "from");
        String content = Rows.said(number, given, "value");
        String role = ROLES.get(from.toLowerCase(Locale.ROOT));
        if (role == null) {
            String shown = from.length() > 80 ? from.substring(0, 80) : from;
            throw new BadRow("message " + number + " is from '" + shown + "', known are "
                    + String.join(", ", SPEAKERS));
        }
        return message(role, content);
    }

    private static JSONObject message(String role, String content) throws JSONException {
        return new JSONObject().put("role", role).put("content", content);
    }

    /** A row with a part of what belongs together is told so, by the shape that it is nearest to. */
    private static void refuseHalf(JSONObject row) throws BadRow {
        Shape nearest = null;
        int most = 0;
        for (Shape shape : ALL) {
            int count = shape.fields.length > 1 && !shape.isOther(row) ? shape.named(row) : 0;
            if (count > most) {
                nearest = shape;
                most = count;
            }
        }
        if (nearest != null) {
            throw new BadRow("has one of " + String.join(" and ", nearest.fields) + ": both belong together");
        }
    }

    /** A row that has all of `fields`. */
    private static final class Shape {
        final Form form;
        final String[] fields;
        /** What may be asked too. */
        String[] beside = {};
        /** What makes it something else. */
        private String never = "";

        Shape(Form form, String... fields) {
            this.form = form;
            this.fields = fields;
        }

        Shape beside(String... fields) {
            beside = fields;
            return this;
        }

        Shape never(String field) {
            never = field;
            return this;
        }

        boolean isOf(JSONObject row) {
            for (String field : fields) {
                if (row.isNull(field)) {
                    return false;
                }
            }
            return never.isEmpty() || row.isNull(never);
        }

        boolean isOther(JSONObject row) {
            return !never.isEmpty() && row.has(never);
        }

        /** How many of the fields the row has, empty ones too. */
        int named(JSONObject row) {
            int count = 0;
            for (String field : fields) {
                count += row.has(field) ? 1 : 0;
            }
            return count;
        }
    }
}
