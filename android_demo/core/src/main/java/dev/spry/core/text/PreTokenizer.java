package dev.spry.core.text;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntPredicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** How a text is cut into words, of which each becomes tokens by itself. */
interface PreTokenizer {
    void split(Text text, List<Text> words);

    /** The pre-tokenizer of a tokenizer.json; null leaves a text in one piece. */
    static PreTokenizer of(JSONObject described) throws JSONException {
        if (described == null) {
            return (text, words) -> words.add(text);
        }
        String type = described.getString("type");
        switch (type) {
            case "Sequence":
                return sequence(described.getJSONArray("pretokenizers"));
            case "BertPreTokenizer":
                return (text, words) -> byCharacter(text, Characters::isPunctuation, true, words);
            case "WhitespaceSplit":
                return (text, words) -> byCharacter(text, character -> false, true, words);
            case "Whitespace":
                return byPattern("\\w+|[^\\w\\s]+", true, false);
            case "Punctuation":
                Tokenizer.expect(described, "behavior", "Isolated");
                return (text, words) -> byCharacter(text, Characters::isPunctuation, false, words);
            case "Digits":
                return described.optBoolean("individual_digits")
                        ? (text, words) -> byCharacter(text, Characters::isNumber, false, words)
                        : byPattern("\\p{N}+", true, true);
            case "Split":
                return pattern(described);
            case "ByteLevel":
                return new ByteLevel(described.optBoolean("add_prefix_space"), described.optBoolean("use_regex", true));
            default:
                throw Tokenizer.unknown("pre-tokenizer", type,
                        "BertPreTokenizer, ByteLevel, Digits, Punctuation, Split, Whitespace, WhitespaceSplit");
        }
    }

    static PreTokenizer sequence(JSONArray described) throws JSONException {
        List<PreTokenizer> all = new ArrayList<>();
        for (int i = 0; i < described.length(); i++) {
            all.add(of(described.getJSONObject(i)));
        }
        return (text, words) -> {
            List<Text> pieces = new ArrayList<>();
            pieces.add(text);
            for (PreTokenizer one : all) {
                List<Text> finer = new ArrayList<>();
                for (Text piece : pieces) {
                    one.split(piece, finer);
                }
                pieces = finer;
            }
            words.addAll(pieces);
        };
    }

    static PreTokenizer pattern(JSONObject described) throws JSONException {
        Tokenizer.expect(described, "invert", "false");
        String behavior = described.getString("behavior");
        if (!behavior.equals("Isolated") && !behavior.equals("Removed")) {
            throw Tokenizer.unknown("behaviour of a split", behavior, "Isolated, Removed");
        }
        JSONObject pattern = described.getJSONObject("pattern");
        String expression = pattern.has("Regex")
                ? pattern.getString("Regex") : Pattern.quote(pattern.getString("String"));
        return byPattern(expression, behavior.equals("Isolated"), true);
    }

    /** With `matches` every match becomes a word, and with `between` what stands between them. */
    static PreTokenizer byPattern(String expression, boolean matches, boolean between) {
        Pattern compiled = Pattern.compile(portable(expression));
        return (text, words) -> {
            String string = text.toString();
            Matcher matcher = compiled.matcher(string);
            Cutter cutter = new Cutter(string, text, words);
            while (matcher.find()) {
                if (matcher.end() > matcher.start()) {
                    cutter.cut(matcher.start(), between);
                    cutter.cut(matcher.end(), matches);
                }
            }
            cutter.cut(string.length(), between);
        };
    }

    /** Java takes \s and \w for ASCII's alone, Android for Unicode's: written out they are the same on both. */
    static String portable(String expression) {
        StringBuilder result = new StringBuilder();
        boolean inBrackets = false;
        for (int i = 0; i < expression.length(); i++) {
            char one = expression.charAt(i);
            if (one == '\\' && i + 1 < expression.length()) {
                char next = expression.charAt(++i);
                String brackets = next == 's' || next == 'S' ? Characters.SPACES : "\\p{L}\\p{M}\\p{N}\\p{Pc}";
                if (next == 's' || next == 'w') {
                    result.append(inBrackets ? brackets : "[" + brackets + "]");
                } else if (next == 'S' || next == 'W') {
                    result.append("[^").append(brackets).append(']');
                } else {
                    result.append(one).append(next);
                }
                continue;
            }
            inBrackets = one == '[' || (inBrackets && one != ']');
            result.append(one);
        }
        return result.toString();
    }

    /** Pieces between spaces, or between nothing, in which the characters that stand alone are pieces themselves. */
    static void byCharacter(Text text, IntPredicate alone, boolean dropSpaces, List<Text> words) {
        int from = 0;
        for (int i = 0; i < text.length(); i++) {
            boolean space = dropSpaces && Characters.isSpace(text.at(i));
            if (!space && !alone.test(text.at(i))) {
                continue;
            }
            if (i > from) {
                words.add(text.part(from, i));
            }
            if (!space) {
                words.add(text.part(i, i + 1));
            }
            from = i + 1;
        }
        if (text.length() > from) {
            words.add(text.part(from, text.length()));
        }
    }

    /** Takes parts of a text by places in its String. */
    final class Cutter {
        private final String string;
        private final Text text;
        private final List<Text> words;
        private int position;
        private int character;

        Cutter(String string, Text text, List<Text> words) {
            this.string = string;
            this.text = text;
            this.words = words;
        }

        /** Goes on to a place, and keeps what was passed over if it is wanted. */
        void cut(int to, boolean keep) {
            int next = character + string.codePointCount(position, to);
            if (keep && next > character) {
                words.add(text.part(character, next));
            }
            position = to;
            character = next;
        }
    }

    /** GPT-2's words, spelt in 256 visible characters, one for each byte of UTF-8. */
    final class ByteLevel implements PreTokenizer {
        static final int SPACE = 0x120;
        private static final int[] CHARACTERS = characters();
        private static final String WORDS =
                "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

        private final boolean prefixSpace;
        private final PreTokenizer words;

        ByteLevel(boolean prefixSpace, boolean cut) {
            this.prefixSpace = prefixSpace;
            this.words = cut ? byPattern(WORDS, true, true) : (text, all) -> all.add(text);
        }

        @Override
        public void split(Text text, List<Text> found) {
            if (text.length() == 0) {
                return;
            }
            List<Text> pieces = new ArrayList<>();
            words.split(prefixSpace && text.at(0) != ' ' ? afterSpace(text) : text, pieces);
            for (Text piece : pieces) {
                found.add(spelt(piece));
            }
        }

        private static Text afterSpace(Text text) {
            Text.Builder result = new Text.Builder(text.length() + 1);
            result.add(' ', text, 0);
            for (int i = 0; i < text.length(); i++) {
                result.add(text.at(i), text, i);
            }
            return result.build();
        }

        private static Text spelt(Text piece) {
            Text.Builder result = new Text.Builder(2 * piece.length());
            for (int i = 0; i < piece.length(); i++) {
                if (piece.at(i) < 0x80) {
                    result.add(CHARACTERS[piece.at(i)], piece, i);
                    continue;
                }
                for (byte one : new String(Character.toChars(piece.at(i))).getBytes(StandardCharsets.UTF_8)) {
                    result.add(CHARACTERS[one & 0xFF], piece, i);
                }
            }
            return result.build();
        }

        /** What a token's spelling says; bytes that are half a character become the sign for it. */
        static String read(String token) {
            return new String(bytes(token), StandardCharsets.UTF_8);
        }

        /** What a token's spelling stands for. */
        static byte[] bytes(String token) {
            byte[] bytes = new byte[token.length()];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) byteOf(token.charAt(i));
            }
            return bytes;
        }

        private static int byteOf(int character) {
            for (int i = 0; i < CHARACTERS.length; i++) {
                if (CHARACTERS[i] == character) {
                    return i;
                }
            }
            return '?';
        }

        /** Visible bytes stand for themselves, the others for characters from 256 on. */
        private static int[] characters() {
            int[] found = new int[256];
            int hidden = 0;
            for (int i = 0; i < found.length; i++) {
                boolean visible = (i >= '!' && i <= '~') || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE;
                found[i] = visible ? i : 256 + hidden++;
            }
            return found;
        }
    }
}
