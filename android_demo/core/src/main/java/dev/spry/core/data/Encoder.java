package dev.spry.core.data;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import dev.spry.core.ProgramInputException;
import dev.spry.core.Tensor;
import dev.spry.core.bundle.Manifest;
import dev.spry.core.text.Encoding;
import dev.spry.core.text.Tokenizer;

/**
 * From examples to the fixed-shape arrays that programs take.
 *
 * <p>A batch always has the bundle's shape: short texts are padded on the right, long ones cut (of a pair, the longer
 * text first), and a batch with too few examples is filled with rows whose weight is zero.
 */
public final class Encoder {
    public final int batch;
    public final int length;
    private final Tokenizer tokenizer;
    private final List<String> inputs;
    private final int pad;
    private final String task;

    public Encoder(Tokenizer tokenizer, Manifest manifest, int batch, int length) {
        this(tokenizer, manifest.inputs, manifest.padTokenId, manifest.model.task, batch, length);
    }

    Encoder(Tokenizer tokenizer, List<String> inputs, int pad, String task, int batch, int length) {
        this.tokenizer = tokenizer;
        this.inputs = inputs;
        this.pad = pad;
        this.task = task;
        this.batch = batch;
        this.length = length;
        for (String input : inputs) {
            if (!Arrays.asList("input_ids", "attention_mask", "token_type_ids").contains(input)) {
                throw new ProgramInputException(
                        "texts give no " + input + ", which the bundle's programs take; export it again");
            }
        }
    }

    /** At most a batch of examples, with the labels of the bundle's task. */
    public Encoded encode(List<Example> examples) {
        checkCount(examples.size());
        List<Encoding> encodings = new ArrayList<>();
        for (Example example : examples) {
            encodings.add(encoding(example, encodings.size()));
        }
        return encoded(encodings, labels(examples, encodings));
    }

    /** At most a batch of a language model's sequences, each of the examples that stand in it. */
    public Encoded together(List<List<Example>> sequences) {
        checkCount(sequences.size());
        List<Encoding> encodings = new ArrayList<>();
        List<boolean[]> learnt = new ArrayList<>();
        for (List<Example> sequence : sequences) {
            List<Encoding> parts = new ArrayList<>();
            boolean[] found = new boolean[length];
            int at = 0;
            for (Example example : sequence) {
                Encoding part = encoding(example, encodings.size());
                boolean[] own = Learnt.of(example, part);
                own[0] &= at == 0; // it would be predicted from another's
                System.arraycopy(own, 0, found, at, own.length);
                at += own.length;
                parts.add(part);
            }
            encodings.add(Encoding.joined(parts));
            learnt.add(found);
        }
        return encoded(encodings, nextTokens(encodings, learnt));
    }

    /** How many tokens an example has here. */
    public int count(Example example) {
        return encoding(example, 0).size();
    }

    private void checkCount(int count) {
        if (count < 1 || count > batch) {
            throw new ProgramInputException("expected 1 to " + batch + " texts, got " + count);
        }
    }

    private Encoded encoded(List<Encoding> encodings, Tensor labels) {
        float[] weight = new float[batch];
        Arrays.fill(weight, 0, encodings.size(), 1);
        return new Encoded(columns(encodings), labels, Tensor.of(weight, batch), encodings);
    }

    private Encoding encoding(Example example, int number) {
        Encoding encoding = encoding(example);
        if (encoding.size() == 0) {
            throw new ProgramInputException("text " + number + " has no tokens: '" + example.text + "'");
        }
        return encoding;
    }

    /** At most `length` tokens of an example; of one with answers those around the most of them. */
    private Encoding encoding(Example example) {
        if (example.learnt == null) {
            return tokenizer.encode(example.text, example.pair, length);
        }
        Encoding whole = tokenizer.whole(example.text, !example.isWhole);
        boolean opened = whole.size() > 0 && tokenizer.isSpecial(whole.ids[0]);
        return whole.at(Learnt.stretch(Learnt.of(example, whole), length, opened));
    }

    private Map<String, Tensor> columns(List<Encoding> encodings) {
        long[] ids = new long[batch * length];
        long[] mask = new long[batch * length];
        long[] types = new long[batch * length];
        Arrays.fill(ids, pad);
        for (int row = 0; row < batch; row++) {
            if (row >= encodings.size()) {
                mask[row * length] = 1; // attention over no token at all is not a number
                continue;
            }
            Encoding encoding = encodings.get(row);
            for (int i = 0; i < encoding.size(); i++) {
                ids[row * length + i] = encoding.ids[i];
                mask[row * length + i] = 1;
                types[row * length + i] = encoding.types[i];
            }
        }
        Map<String, Tensor> columns = new LinkedHashMap<>();
        for (String input : inputs) {
            long[] column = input.equals("input_ids") ? ids : input.equals("attention_mask") ? mask : types;
            columns.put(input, Tensor.of(column, batch, length));
        }
        return columns;
    }

    private Tensor labels(List<Example> examples, List<Encoding> encodings) {
        switch (task) {
            case "qa":
                return spans(examples, encodings);
            case "causal-lm":
                List<boolean[]> learnt = new ArrayList<>();
                for (int i = 0; i < examples.size(); i++) {
                    learnt.add(Learnt.of(examples.get(i), encodings.get(i)));
                }
                return nextTokens(encodings, learnt);
            default:
                long[] classes = new long[batch];
                for (int i = 0; i < examples.size(); i++) {
                    classes[i] = examples.get(i).label;
                }
                return Tensor.of(classes, batch);
        }
    }

    /** Answers' first and last tokens: token 0 where there is no answer, IGNORED where it was cut off. */
    private Tensor spans(List<Example> examples, List<Encoding> encodings) {
        long[] spans = new long[2 * batch];
        Arrays.fill(spans, Manifest.IGNORED);
        for (int i = 0; i < examples.size(); i++) {
            Example example = examples.get(i);
            if (example.answer == null) {
                spans[2 * i] = spans[2 * i + 1] = 0;
                continue;
            }
            int stop = example.answerStart + example.answer.codePointCount(0, example.answer.length());
            int first = encodings.get(i).tokenOf(example.answerStart, 1);
            int last = encodings.get(i).tokenOf(stop - 1, 1);
            if (first >= 0 && last >= 0) {
                spans[2 * i] = first;
                spans[2 * i + 1] = last;
            }
        }
        return Tensor.of(spans, batch, 2);
    }

    /** A language model's labels: the tokens themselves, IGNORED on padding and where they are not learnt. */
    private Tensor nextTokens(List<Encoding> encodings, List<boolean[]> learnt) {
        long[] labels = new long[batch * length];
        Arrays.fill(labels, Manifest.IGNORED);
        for (int row = 0; row < encodings.size(); row++) {
            int[] ids = encodings.get(row).ids;
            for (int i = 0; i < ids.length; i++) {
                labels[row * length + i] = learnt.get(row)[i] ? ids[i] : Manifest.IGNORED;
            }
        }
        return Tensor.of(labels, batch, length);
    }
}
