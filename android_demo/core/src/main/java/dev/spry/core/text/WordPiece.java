package dev.spry.core.text;

import java.util.Map;

import org.json.JSONException;
import org.json.JSONObject;

/** BERT's: the longest token that a word begins with, then the longest that goes on from there, … */
final class WordPiece implements WordModel {
    private final Map<String, Integer> vocabulary;
    private final String continuing;
    private final int longest;
    private final int unknown;

    WordPiece(JSONObject described) throws JSONException {
        vocabulary = Tokenizer.vocabulary(described.getJSONObject("vocab"));
        continuing = described.optString("continuing_subword_prefix", "##");
        longest = described.optInt("max_input_chars_per_word", 100);
        unknown = number(described.getString("unk_token"));
        if (unknown < 0) {
            throw Tokenizer.damaged("the token for unknown words is not in its vocabulary");
        }
    }

    @Override
    public int number(String token) {
        Integer found = vocabulary.get(token);
        return found == null ? -1 : found;
    }

    @Override
    public void cut(Text word, Encoding.Builder tokens) {
        int before = tokens.size();
        int from = 0;
        while (from < word.length() && word.length() <= longest) {
            int to = word.length();
            int found = -1;
            while (to > from && found < 0) {
                String piece = word.part(from, to).toString();
                found = number(from > 0 ? continuing + piece : piece);
                to -= found < 0 ? 1 : 0;
            }
            if (found < 0) {
                break;
            }
            tokens.add(found, word.start(from), word.end(to - 1));
            from = to;
        }
        if (from < word.length()) { // one piece that nobody knows makes the whole word unknown
            tokens.cutTo(before);
            tokens.add(unknown, word.start(0), word.end(word.length() - 1));
        }
    }
}
