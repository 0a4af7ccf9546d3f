package dev.spry.core.text;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** Tokens that stand in texts as they are, such as [SEP] or &lt;mask&gt;; the longest counts where several begin. */
final class AddedTokens {
    private final Map<Integer, List<Token>> byFirst = new HashMap<>();

    /** Hears the parts of a text in order. */
    interface Parts {
        void token(int id, Text place);

        void between(Text text);
    }

    private static final class Token {
        final int id;
        final int[] content;
        final boolean word;
        final boolean left;
        final boolean right;

        Token(JSONObject described, int[] content) throws JSONException {
            id = described.getInt("id");
            this.content = content;
            word = described.optBoolean("single_word");
            left = described.optBoolean("lstrip");
            right = described.optBoolean("rstrip");
        }

        boolean at(Text text, int position) {
            if (position + content.length > text.length()) {
                return false;
            }
            for (int i = 0; i < content.length; i++) {
                if (text.at(position + i) != content[i]) {
                    return false;
                }
            }
            return true;
        }
    }

    /** Those of the tokens that are looked for in normalized texts, or the others. */
    AddedTokens(JSONArray described, boolean normalized, Normalizer normalizer) throws JSONException {
        for (int i = 0; i < described.length(); i++) {
            JSONObject one = described.getJSONObject(i);
            if (one.optBoolean("normalized") != normalized) {
                continue;
            }
            Text content = Text.of(one.getString("content"));
            int[] characters = Text.codePoints((normalized ? normalizer.apply(content) : content).toString());
            if (characters.length > 0) {
                byFirst.computeIfAbsent(characters[0], first -> new ArrayList<>()).add(new Token(one, characters));
            }
        }
    }

    void split(Text text, Parts parts) {
        int done = 0;
        int position = 0;
        while (position < text.length()) {
            Token token = longest(text, position);
            if (token == null) {
                position++;
                continue;
            }
            int found = position;
            int start = found;
            int stop = position + token.content.length;
            position = stop;
            if (token.word && !standsAlone(text, start, stop)) {
                continue;
            }
            while (token.left && start > done && Characters.isSpace(text.at(start - 1))) {
                start--;
            }
            while (token.right && stop < text.length() && Characters.isSpace(text.at(stop))) {
                stop++;
            }
            if (start > done) {
                parts.between(text.part(done, start));
            }
            parts.token(token.id, text.part(found, found + token.content.length));
            done = stop;
            position = Math.max(position, stop);
        }
        if (text.length() > done) {
            parts.between(text.part(done, text.length()));
        }
    }

    private Token longest(Text text, int position) {
        Token best = null;
        List<Token> candidates = byFirst.get(text.at(position));
        for (int i = 0; candidates != null && i < candidates.size(); i++) {
            Token token = candidates.get(i);
            if ((best == null || token.content.length > best.content.length) && token.at(text, position)) {
                best = token;
            }
        }
        return best;
    }

    private static boolean standsAlone(Text text, int start, int stop) {
        return (start == 0 || !Characters.isWord(text.at(start - 1)))
                && (stop == text.length() || !Characters.isWord(text.at(stop)));
    }
}
