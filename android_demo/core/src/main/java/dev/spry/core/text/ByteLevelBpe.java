package dev.spry.core.text;

import java.util.HashMap;
import java.util.Map;
import java.util.PriorityQueue;

import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** GPT-2's and RoBERTa's: a word's bytes, joined pair by pair in the order in which training found the pairs. */
final class ByteLevelBpe implements WordModel {
    private final Map<String, Integer> vocabulary;
    private final Map<Long, Merge> merges = new HashMap<>();
    private final boolean wholeWords;

    private static final class Merge {
        final int rank;
        final int result;

        Merge(int rank, int result) {
            this.rank = rank;
            this.result = result;
        }
    }

    ByteLevelBpe(JSONObject described) throws JSONException {
        for (String option : new String[] {"continuing_subword_prefix", "end_of_word_suffix", "dropout", "unk_token"}) {
            if (!described.isNull(option) && !described.getString(option).isEmpty()) {
                throw Tokenizer.unknown("setting of BPE", option, "a vocabulary of bytes");
            }
        }
        if (described.optBoolean("byte_fallback")) {
            throw Tokenizer.unknown("setting of BPE", "byte_fallback", "a vocabulary of bytes");
        }
        vocabulary = Tokenizer.vocabulary(described.getJSONObject("vocab"));
        wholeWords = described.optBoolean("ignore_merges");
        JSONArray pairs = described.getJSONArray("merges");
        for (int rank = 0; rank < pairs.length(); rank++) {
            String[] pair = pair(pairs.get(rank));
            int left = number(pair[0]);
            int right = number(pair[1]);
            int result = number(pair[0] + pair[1]);
            if (left < 0 || right < 0 || result < 0) {
                throw Tokenizer.damaged("merge " + rank + " is of tokens that are not in its vocabulary");
            }
            merges.put(key(left, right), new Merge(rank, result));
        }
    }

    private static String[] pair(Object written) throws JSONException {
        if (written instanceof JSONArray) {
            return new String[] {((JSONArray) written).getString(0), ((JSONArray) written).getString(1)};
        }
        String both = written.toString();
        int space = both.indexOf(' ');
        if (space < 0) {
            throw Tokenizer.damaged("a merge must be a pair, got " + both);
        }
        return new String[] {both.substring(0, space), both.substring(space + 1)};
    }

    private static long key(int left, int right) {
        return ((long) left << 32) | right;
    }

    @Override
    public int number(String token) {
        Integer found = vocabulary.get(token);
        return found == null ? -1 : found;
    }

    @Override
    public void cut(Text word, Encoding.Builder tokens) {
        if (word.length() == 0) {
            return;
        }
        int whole = wholeWords ? number(word.toString()) : -1;
        if (whole >= 0) {
            tokens.add(whole, word.start(0), word.end(word.length() - 1));
        } else {
            new Joined(word).into(tokens);
        }
    }

    /** The symbols of one word: a list that is linked both ways, and the pairs in it that can be joined. */
    private final class Joined {
        private final Text word;
        private final int[] symbols;
        private final int[] previous;
        private final int[] next;
        private final int[] stops;
        private final PriorityQueue<long[]> pairs =
                new PriorityQueue<>((a, b) -> a[0] != b[0] ? Long.compare(a[0], b[0]) : Long.compare(a[1], b[1]));

        Joined(Text word) {
            this.word = word;
            int length = word.length();
            symbols = new int[length];
            previous = new int[length];
            next = new int[length];
            stops = new int[length];
            for (int i = 0; i < length; i++) {
                symbols[i] = number(word.part(i, i + 1).toString());
                previous[i] = i - 1;
                next[i] = i + 1;
                stops[i] = i + 1;
            }
            for (int i = 0; i + 1 < length; i++) {
                offer(i, i + 1);
            }
            join();
        }

        private void offer(int left, int right) {
            Merge merge = merges.get(key(symbols[left], symbols[right]));
            if (merge != null) {
                pairs.add(new long[] {merge.rank, left, key(symbols[left], symbols[right])});
            }
        }

        private void join() {
            while (!pairs.isEmpty()) {
                long[] best = pairs.poll();
                int left = (int) best[1];
                int right = next[left];
                if (stops[left] == 0 || right == symbols.length || key(symbols[left], symbols[right]) != best[2]) {
                    continue; // one of the two has become part of another since
                }
                symbols[left] = merges.get(best[2]).result;
                stops[left] = stops[right];
                stops[right] = 0;
                next[left] = next[right];
                if (next[left] < symbols.length) {
                    previous[next[left]] = left;
                    offer(left, next[left]);
                }
                if (previous[left] >= 0) {
                    offer(previous[left], left);
                }
            }
        }

        void into(Encoding.Builder tokens) {
            for (int i = 0; i < symbols.length; i = next[i]) {
                if (symbols[i] >= 0) { // a byte that the vocabulary lacks is left out
                    tokens.add(symbols[i], word.start(i), word.end(stops[i] - 1));
                }
            }
        }
    }
}
