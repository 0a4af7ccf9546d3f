package dev.spry.core.text;

import java.text.Normalizer.Form;
import java.util.ArrayList;
import java.util.List;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** What is done to a text's characters before it is cut into words. */
interface Normalizer {
    Text apply(Text text);

    /** The normalizer of a tokenizer.json; null leaves texts as they are. */
    static Normalizer of(JSONObject described) throws JSONException {
        if (described == null) {
            return text -> text;
        }
        String type = described.getString("type");
        switch (type) {
            case "Sequence":
                return sequence(described.getJSONArray("normalizers"));
            case "BertNormalizer":
                return bert(described);
            case "Lowercase":
                return Normalizer::lowercased;
            case "StripAccents":
                return text -> without(text, true);
            case "NFC":
            case "NFD":
            case "NFKC":
            case "NFKD":
                Form form = Form.valueOf(type);
                return text -> composed(text, form);
            default:
                throw Tokenizer.unknown("normalizer", type,
                        "BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents");
        }
    }

    static Normalizer sequence(JSONArray described) throws JSONException {
        List<Normalizer> all = new ArrayList<>();
        for (int i = 0; i < described.length(); i++) {
            all.add(of(described.getJSONObject(i)));
        }
        return text -> {
            Text result = text;
            for (Normalizer one : all) {
                result = one.apply(result);
            }
            return result;
        };
    }

    static Normalizer bert(JSONObject described) {
        boolean clean = described.optBoolean("clean_text", true);
        boolean ideographs = described.optBoolean("handle_chinese_chars", true);
        boolean lowercase = described.optBoolean("lowercase", true);
        boolean accents = described.isNull("strip_accents") ? !lowercase : !described.optBoolean("strip_accents");
        return text -> {
            Text result = clean ? cleaned(text) : text;
            result = ideographs ? apart(result) : result;
            result = accents ? result : without(composed(result, Form.NFD), false);
            return lowercase ? lowercased(result) : result;
        };
    }

    static Text cleaned(Text text) {
        Text.Builder result = new Text.Builder(text.length());
        for (int i = 0; i < text.length(); i++) {
            int character = text.at(i);
            if (character != 0 && character != 0xFFFD && !Characters.isControl(character)) {
                result.add(Characters.isSpace(character) ? ' ' : character, text, i);
            }
        }
        return result.build();
    }

    /** Ideographs with a space on either side. */
    static Text apart(Text text) {
        Text.Builder result = new Text.Builder(text.length());
        for (int i = 0; i < text.length(); i++) {
            boolean ideograph = Characters.isIdeograph(text.at(i));
            if (ideograph) {
                result.add(' ', text, i);
            }
            result.add(text.at(i), text, i);
            if (ideograph) {
                result.add(' ', text, i);
            }
        }
        return result.build();
    }

    /** Character by character: unlike a String's own method, with one form of sigma and in every language the same. */
    static Text lowercased(Text text) {
        Text.Builder result = new Text.Builder(text.length());
        for (int i = 0; i < text.length(); i++) {
            result.add(Character.toLowerCase(text.at(i)), text, i);
            if (text.at(i) == 0x130) { // I with a dot, the one character that becomes two
                result.add(0x307, text, i);
            }
        }
        return result.build();
    }

    /** Without marks: all, or those alone that take no room. */
    static Text without(Text text, boolean all) {
        Text.Builder result = new Text.Builder(text.length());
        for (int i = 0; i < text.length(); i++) {
            if (!(all ? Characters.isMark(text.at(i)) : Characters.isNonSpacingMark(text.at(i)))) {
                result.add(text.at(i), text, i);
            }
        }
        return result.build();
    }

    /** One of Unicode's normal forms; a base and its marks at a time, so that places are kept. */
    static Text composed(Text text, Form form) {
        if (java.text.Normalizer.isNormalized(text.toString(), form)) {
            return text;
        }
        Text.Builder result = new Text.Builder(text.length());
        int from = 0;
        while (from < text.length()) {
            int to = from + 1;
            while (to < text.length() && joins(text.at(to))) {
                to++;
            }
            int[] changed = Text.codePoints(java.text.Normalizer.normalize(text.part(from, to).toString(), form));
            int merged = Math.max(to - from - changed.length, 0); // into the first character
            for (int i = 0; i < changed.length; i++) {
                result.add(changed[i], text, Math.min(from + i + (i > 0 ? merged : 0), to - 1));
            }
            from = to;
        }
        return result.build();
    }

    /** Whether a character may become one with what stands before it: marks, and the later letters of Hangul. */
    static boolean joins(int character) {
        return Characters.isMark(character) || (character >= 0x1160 && character <= 0x11FF)
                || character == 0xFF9E || character == 0xFF9F;
    }
}
