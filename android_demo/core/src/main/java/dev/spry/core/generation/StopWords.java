package dev.spry.core.generation;

import java.util.List;

import dev.spry.core.ProgramInputException;

/** Lets text pass up to the first of some words, wherever tokens divide it: the one that is whole first. */
final class StopWords {
    private final List<String> words;
    private String held = "";
    private boolean met;

    StopWords(List<String> words) {
        if (words.contains("")) {
            throw new ProgramInputException("a stop word must have a character at least, got an empty one");
        }
        this.words = words;
    }

    /** Whether one has come. */
    boolean met() {
        return met;
    }

    /** What is certainly before any stop word. */
    String add(String piece) {
        String text = held + piece;
        int start = 0;
        int end = Integer.MAX_VALUE;
        for (String word : words) {
            int place = text.indexOf(word);
            if (place >= 0 && (place + word.length() < end || place + word.length() == end && place < start)) {
                start = place;
                end = place + word.length();
                met = true;
            }
        }
        if (met) {
            held = "";
            return text.substring(0, start);
        }
        int kept = beginning(text);
        held = text.substring(text.length() - kept);
        return text.substring(0, text.length() - kept);
    }

    String flush() {
        String rest = held;
        held = "";
        return rest;
    }

    /** How much of the end may begin a stop word. */
    private int beginning(String text) {
        int most = 0;
        for (String word : words) {
            int longest = Math.min(word.length() - 1, text.length());
            for (int count = longest; count > most; count--) {
                if (text.endsWith(word.substring(0, count))) {
                    most = count;
                }
            }
        }
        return most;
    }
}
