package dev.spry.core.bundle;

import java.util.List;

import org.json.JSONException;
import org.json.JSONObject;

/** How a chat template writes thoughts, which stand between two words at an answer's beginning. */
public final class Thoughts {
    // --- written by android_demo/core/manifest.py from edge_client/bundle/manifest.py: change that, and run it ---
    public final String opens;
    public final String closes;
    /** The characters that an answer and its thoughts lose where they meet these words. */
    public final String strips;
    /**
     * The text around the thoughts, even empty ones, of an answer that ends the conversation. Those of earlier answers
     * are hidden; null: all are.
     */
    public final List<String> around;

    Thoughts(JSONObject json) throws JSONException {
        opens = json.getString("opens");
        closes = json.getString("closes");
        strips = json.isNull("strips") ? "" : json.getString("strips");
        around = json.isNull("around") ? null : Json.strings(json.getJSONArray("around"), 2);
        check();
    }

    // --- by hand ---

    private void check() throws JSONException {
        if (closes.isEmpty()) {
            throw new JSONException("thoughts of turns must have a word that closes them");
        }
    }

    /** An answer as it stands, with its thoughts or without them. */
    public String written(String content, boolean last) {
        int closed = content.indexOf(closes);
        String said = content;
        if (closed >= 0) {
            said = content.substring(content.lastIndexOf(closes) + closes.length());
            said = said.substring(leading(said));
        }
        if (!last || around == null) {
            return said;
        }
        return around.get(0) + (closed < 0 ? "" : thought(content.substring(0, closed))) + around.get(1)
                + said.substring(leading(said));
    }

    private String thought(String before) {
        int opened = before.lastIndexOf(opens);
        String thought = opened < 0 ? before : before.substring(opened + opens.length());
        thought = thought.substring(leading(thought));
        int stop = thought.length();
        while (stop > 0 && strips.indexOf(thought.charAt(stop - 1)) >= 0) {
            stop--;
        }
        return thought.substring(0, stop);
    }

    private int leading(String text) {
        int count = 0;
        while (count < text.length() && strips.indexOf(text.charAt(count)) >= 0) {
            count++;
        }
        return count;
    }
}
