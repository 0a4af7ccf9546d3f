package dev.spry.core.wire;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import dev.spry.core.Event;
import dev.spry.core.SpryException;
import dev.spry.core.Vectors;

class BoundsTest {
    private static final String ESCAPES = "\u001b]0;owned\u0007\u202e\u200f\u009b1m\n\ud800 ok";
    private static final String PLAIN = " ]0;owned    1m   ok";

    /** As the client reads an answer. */
    private static void read(String kind, String text) throws JSONException {
        JSONObject answer = Json.parse(text.getBytes(StandardCharsets.UTF_8));
        switch (kind) {
            case "CheckedIn":
                new CheckedIn(answer);
                break;
            case "Receipt":
                new Receipt(answer);
                break;
            default:
                new OpenJob(answer);
        }
    }

    private static void change(JSONObject answer, JSONArray where, Object value) throws JSONException {
        JSONObject at = answer;
        for (int i = 0; i < where.length() - 1; i++) {
            if (!at.has(where.getString(i))) {
                at.put(where.getString(i), new JSONObject());
            }
            at = at.getJSONObject(where.getString(i));
        }
        if (value instanceof JSONObject) {
            char[] letters = new char[((JSONObject) value).getInt("long")];
            Arrays.fill(letters, 'x');
            at.put(where.getString(where.length() - 1), new String(letters));
        } else if (where.length() > 0) {
            at.put(where.getString(where.length() - 1), value);
        }
    }

    @Test
    void whatThePythonClientTakesIsTakenAndNothingElse() throws Exception {
        JSONObject vectors = Vectors.read("answers.json");
        JSONArray cases = vectors.getJSONArray("cases");
        for (int i = 0; i < cases.length(); i++) {
            JSONArray one = cases.getJSONArray(i);
            JSONObject answer = new JSONObject(vectors.getJSONObject("answers").getString(one.getString(0)));
            if (one.getJSONArray(1).length() > 0) {
                change(answer, one.getJSONArray(1), one.get(2));
            }
            String text = answer.toString();
            if (one.getBoolean(3)) {
                assertDoesNotThrow(() -> read(one.getString(0), text), one.toString());
            } else {
                assertThrows(JSONException.class, () -> read(one.getString(0), text), one.toString());
            }
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"NaN", "Infinity", "-Infinity", "1e400", "99999999999999999999999"})
    void whatIsNoNumberOfUse(String number) {
        assertThrows(JSONException.class, () -> read("Receipt", "{\"wait\": " + number + "}"));
    }

    @Test
    void whatIsLongOrDeep() {
        StringBuilder many = new StringBuilder();
        for (int i = 0; i < 65_536; i++) {
            many.append("\"\",");
        }
        String list = "{\"job\": \"j\", \"job_name\": \"n\", \"task\": \"seq-cls\", \"labels\": [" + many + "\"\"]}";
        assertThrows(JSONException.class, () -> read("OpenJob", list));
        char[] deep = new char[1_000_000];
        Arrays.fill(deep, '[');
        assertThrows(JSONException.class, () -> read("CheckedIn", "{\"more\": " + new String(deep)));
        assertThrows(JSONException.class, () -> Json.parseList(new String(deep).getBytes(StandardCharsets.UTF_8)));
    }

    @Test
    void textsSteerNoTerminal() throws Exception {
        JSONObject answer = new JSONObject().put("reason", ESCAPES).put("wait", 1);
        assertEquals(PLAIN, new CheckedIn(answer).reason);
        assertEquals(PLAIN, Event.of("warning", ESCAPES).message);
        assertEquals(PLAIN, Event.of("warning", "").with("task", ESCAPES).details.get("task"));
        assertEquals(PLAIN, new SpryException(ESCAPES).getMessage());
        assertEquals("a 😀 é", Bounds.shown("a 😀 é"));
    }
}
