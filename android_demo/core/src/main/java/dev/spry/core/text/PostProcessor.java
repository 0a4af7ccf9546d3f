package dev.spry.core.text;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** What a model wants around its texts: [CLS] … [SEP] … [SEP], and where the second text begins. */
final class PostProcessor {
    private List<Piece> single = Collections.singletonList(new Piece(0, 0));
    private List<Piece> pair = new ArrayList<>();
    /** Tokens' places leave out the spaces that byte-level tokens begin with. */
    private boolean narrow;
    private boolean prefixSpace;

    /** A text (0 or 1), or with `special` the number of a token. */
    private static final class Piece {
        final int value;
        final int type;
        final boolean special;

        Piece(int text, int type) {
            this(text, type, false);
        }

        Piece(int value, int type, boolean special) {
            this.value = value;
            this.type = type;
            this.special = special;
        }
    }

    /** The post-processor of a tokenizer.json; null puts nothing around texts. */
    PostProcessor(JSONObject described) throws JSONException {
        pair.add(new Piece(0, 0));
        pair.add(new Piece(1, 1));
        if (described != null) {
            read(described);
        }
    }

    private void read(JSONObject described) throws JSONException {
        String type = described.getString("type");
        switch (type) {
            case "Sequence":
                JSONArray all = described.getJSONArray("processors");
                for (int i = 0; i < all.length(); i++) {
                    read(all.getJSONObject(i));
                }
                break;
            case "ByteLevel":
                readPlaces(described);
                break;
            case "TemplateProcessing":
                JSONObject tokens = described.getJSONObject("special_tokens");
                single = template(described.getJSONArray("single"), tokens);
                pair = template(described.getJSONArray("pair"), tokens);
                break;
            case "BertProcessing":
                around(described, 1, false);
                break;
            case "RobertaProcessing":
                around(described, 0, true);
                readPlaces(described);
                break;
            default:
                throw Tokenizer.unknown("post-processor", type,
                        "BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing");
        }
    }

    private void readPlaces(JSONObject described) {
        narrow = described.optBoolean("trim_offsets", true);
        prefixSpace = described.optBoolean("add_prefix_space", true);
    }

    private void around(JSONObject described, int type, boolean twice) throws JSONException {
        Piece begin = new Piece(described.getJSONArray("cls").getInt(1), 0, true);
        int separator = described.getJSONArray("sep").getInt(1);
        single = new ArrayList<>();
        Collections.addAll(single, begin, new Piece(0, 0), new Piece(separator, 0, true));
        pair = new ArrayList<>(single);
        if (twice) {
            pair.add(new Piece(separator, type, true));
        }
        Collections.addAll(pair, new Piece(1, type), new Piece(separator, type, true));
    }

    private static List<Piece> template(JSONArray described, JSONObject tokens) throws JSONException {
        List<Piece> found = new ArrayList<>();
        for (int i = 0; i < described.length(); i++) {
            JSONObject piece = described.getJSONObject(i);
            if (piece.has("Sequence")) {
                JSONObject text = piece.getJSONObject("Sequence");
                found.add(new Piece(text.getString("id").equals("A") ? 0 : 1, text.getInt("type_id")));
                continue;
            }
            JSONObject token = piece.getJSONObject("SpecialToken");
            JSONArray ids = tokens.getJSONObject(token.getString("id")).getJSONArray("ids");
            for (int j = 0; j < ids.length(); j++) {
                found.add(new Piece(ids.getInt(j), token.getInt("type_id"), true));
            }
        }
        return found;
    }

    /** How many tokens it puts around texts. */
    int added(boolean ofPair) {
        int count = 0;
        for (Piece piece : ofPair ? pair : single) {
            count += piece.special ? 1 : 0;
        }
        return count;
    }

    Encoding join(Encoding.Builder first, Encoding.Builder second) {
        Encoding.Builder result = new Encoding.Builder();
        for (Piece piece : second == null ? single : pair) {
            if (piece.special) {
                result.special(piece.value, piece.type);
            } else {
                result.all(piece.value == 0 ? first : second, piece.type, piece.value);
            }
        }
        return result.build();
    }

    /** Leaves the spaces that tokens begin or end with out of their places. */
    void narrow(Encoding.Builder tokens, Tokenizer tokenizer) {
        for (int i = 0; narrow && i < tokens.size(); i++) {
            String token = tokenizer.token(tokens.id(i));
            int leading = 0;
            while (leading < token.length() && isSpace(token.charAt(leading))) {
                leading++;
            }
            int trailing = 0;
            while (trailing < token.length() && isSpace(token.charAt(token.length() - 1 - trailing))) {
                trailing++;
            }
            boolean put = leading == 1 && prefixSpace && (i == 0 || tokens.start(i) == 0); // it is not in the text
            tokens.narrow(i, put ? 0 : leading, trailing);
        }
    }

    private static boolean isSpace(char character) {
        return character == PreTokenizer.ByteLevel.SPACE || Characters.isSpace(character);
    }
}
