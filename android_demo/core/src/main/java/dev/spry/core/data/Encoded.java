package dev.spry.core.data;

import java.util.List;
import java.util.Map;

import dev.spry.core.Tensor;
import dev.spry.core.text.Encoding;

/** A batch of examples as programs take it. */
public final class Encoded {
    /** The bundle's token inputs, int64 [batch, length] each. */
    public final Map<String, Tensor> tokens;
    /** int64: [batch] classes, [batch, 2] answers, or [batch, length] tokens. */
    public final Tensor labels;
    /** float32 [batch]: 1 for an example, 0 for a row that only fills the batch. */
    public final Tensor weight;
    /** One per example, for the places of its tokens. */
    public final List<Encoding> encodings;

    Encoded(Map<String, Tensor> tokens, Tensor labels, Tensor weight, List<Encoding> encodings) {
        this.tokens = tokens;
        this.labels = labels;
        this.weight = weight;
        this.encodings = encodings;
    }

    /** How many examples it has. */
    public int examples() {
        return encodings.size();
    }
}
