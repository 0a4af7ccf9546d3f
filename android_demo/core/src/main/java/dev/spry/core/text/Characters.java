package dev.spry.core.text;

/** What tokenizers ask about a character: the answers of the `tokenizers` library, on every Java and every Android. */
final class Characters {
    /** The Unicode property White_Space, for a regular expression's brackets. */
    static final String SPACES =
            "\\u0009-\\u000D\\u0020\\u0085\\u00A0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000";

    private Characters() {}

    static boolean isSpace(int character) {
        return (character >= 0x9 && character <= 0xD) || character == 0x20 || character == 0x85 || character == 0xA0
                || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) || character == 0x2028
                || character == 0x2029 || character == 0x202F || character == 0x205F || character == 0x3000;
    }

    /** A letter, a mark, a digit or a connector: what a regular expression calls a word's character. */
    static boolean isWord(int character) {
        return Character.isLetterOrDigit(character) || isMark(character)
                || Character.getType(character) == Character.CONNECTOR_PUNCTUATION;
    }

    static boolean isMark(int character) {
        int type = Character.getType(character);
        return type == Character.NON_SPACING_MARK || type == Character.COMBINING_SPACING_MARK
                || type == Character.ENCLOSING_MARK;
    }

    static boolean isNonSpacingMark(int character) {
        return Character.getType(character) == Character.NON_SPACING_MARK;
    }

    /** Unicode's punctuation, and what ASCII has of symbols. */
    static boolean isPunctuation(int character) {
        if (character < 0x80) {
            return character > 0x20 && character < 0x7F && !Character.isLetterOrDigit(character);
        }
        switch (Character.getType(character)) {
            case Character.CONNECTOR_PUNCTUATION:
            case Character.DASH_PUNCTUATION:
            case Character.START_PUNCTUATION:
            case Character.END_PUNCTUATION:
            case Character.INITIAL_QUOTE_PUNCTUATION:
            case Character.FINAL_QUOTE_PUNCTUATION:
            case Character.OTHER_PUNCTUATION:
                return true;
            default:
                return false;
        }
    }

    static boolean isNumber(int character) {
        int type = Character.getType(character);
        return type == Character.DECIMAL_DIGIT_NUMBER || type == Character.LETTER_NUMBER
                || type == Character.OTHER_NUMBER;
    }

    /** A control, format or private character, which BERT's cleaning takes out; tabs and ends of lines are spaces. */
    static boolean isControl(int character) {
        if (character == '\t' || character == '\n' || character == '\r') {
            return false;
        }
        int type = Character.getType(character);
        return type == Character.CONTROL || type == Character.FORMAT || type == Character.PRIVATE_USE
                || type == Character.SURROGATE;
    }

    /** The ideographs that BERT takes for words of their own. */
    static boolean isIdeograph(int character) {
        return (character >= 0x4E00 && character <= 0x9FFF) || (character >= 0x3400 && character <= 0x4DBF)
                || (character >= 0x20000 && character <= 0x2A6DF) || (character >= 0x2A700 && character <= 0x2B73F)
                || (character >= 0x2B740 && character <= 0x2B81F) || (character >= 0x2B920 && character <= 0x2CEAF)
                || (character >= 0xF900 && character <= 0xFAFF) || (character >= 0x2F800 && character <= 0x2FA1F);
    }
}
