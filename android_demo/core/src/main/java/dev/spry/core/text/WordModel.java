package dev.spry.core.text;

import org.json.JSONException;
import org.json.JSONObject;

/** Cuts one word into tokens of a vocabulary. */
interface WordModel {
    void cut(Text word, Encoding.Builder tokens);

    /** The number of a token; -1 for one that is not in the vocabulary. */
    int number(String token);

    /** The model of a tokenizer.json. */
    static WordModel of(JSONObject described) throws JSONException {
        String type = described.optString("type", "BPE"); // old files leave it out
        switch (type) {
            case "WordPiece":
                return new WordPiece(described);
            case "BPE":
                return new ByteLevelBpe(described);
            default:
                throw Tokenizer.unknown("model", type, "WordPiece, BPE");
        }
    }
}
