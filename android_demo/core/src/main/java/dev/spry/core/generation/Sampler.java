package dev.spry.core.generation;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.SplittableRandom;

/**
 * Which token comes next: the likeliest, or one drawn from the likely.
 *
 * <p>The numbers are those of the Python client, and of transformers' generate: a repeated token's logit is divided by
 * the penalty (multiplied where it is negative), then all are divided by the temperature, then the highest are kept,
 * then the fewest whose probabilities come to top_p.
 */
final class Sampler {
    private final Sampling sampling;
    private final SplittableRandom random;

    Sampler(Sampling sampling) {
        sampling.check();
        this.sampling = sampling;
        random = sampling.seed == null ? new SplittableRandom() : new SplittableRandom(sampling.seed);
    }

    /** The next token by the logits of the whole vocabulary, behind the tokens that were seen. */
    int choose(float[] logits, Collection<Integer> seen) {
        float[] scores = processed(logits, seen, sampling);
        if (sampling.temperature == 0) {
            return likeliest(scores);
        }
        float[] shares = probabilities(scores);
        double total = 0;
        for (float share : shares) {
            total += share;
        }
        double place = (random.nextLong() >>> 11) * 0x1p-53 * total;
        double below = 0;
        int last = 0;
        for (int token = 0; token < shares.length; token++) {
            below += shares[token];
            if (below > place) {
                return token;
            }
            last = shares[token] > 0 ? token : last;
        }
        return last;
    }

    /** Logits that tokens are drawn by; of those that are not, minus infinity. */
    static float[] processed(float[] logits, Collection<Integer> seen, Sampling sampling) {
        float[] scores = logits.clone();
        if (sampling.repetitionPenalty != 1) {
            repeatLess(scores, seen, (float) sampling.repetitionPenalty);
        }
        if (sampling.temperature == 0) {
            return scores;
        }
        for (int token = 0; token < scores.length; token++) {
            scores[token] /= (float) sampling.temperature;
        }
        if (sampling.topK > 0 && sampling.topK < scores.length) {
            keepHighest(scores, sampling.topK);
        }
        if (sampling.topP < 1) {
            keepLikeliest(scores, (float) (1 - sampling.topP));
        }
        return scores;
    }

    private static void repeatLess(float[] scores, Collection<Integer> seen, float penalty) {
        for (int token : new HashSet<>(seen)) {
            scores[token] = scores[token] < 0 ? scores[token] * penalty : scores[token] / penalty;
        }
    }

    private static void keepHighest(float[] scores, int count) {
        float[] sorted = scores.clone();
        Arrays.sort(sorted);
        float lowest = sorted[sorted.length - count];
        for (int token = 0; token < scores.length; token++) {
            if (scores[token] < lowest) {
                scores[token] = Float.NEGATIVE_INFINITY;
            }
        }
    }

    /** Without the unlikely ones that come to so little together; the likeliest always stays. */
    private static void keepLikeliest(float[] scores, float rest) {
        List<Integer> ascending = new ArrayList<>(scores.length);
        for (int token = 0; token < scores.length; token++) {
            ascending.add(token);
        }
        ascending.sort(Comparator.comparingDouble(token -> scores[token]));
        float[] shares = probabilities(scores);
        float below = 0;
        for (int place = 0; place < ascending.size() - 1; place++) {
            below += shares[ascending.get(place)];
            if (below > rest) {
                return;
            }
            scores[ascending.get(place)] = Float.NEGATIVE_INFINITY;
        }
    }

    private static float[] probabilities(float[] scores) {
        float highest = scores[likeliest(scores)];
        float[] shares = new float[scores.length];
        double total = 0;
        for (int token = 0; token < scores.length; token++) {
            shares[token] = (float) Math.exp(scores[token] - highest);
            total += shares[token];
        }
        for (int token = 0; token < shares.length; token++) {
            shares[token] = (float) (shares[token] / total);
        }
        return shares;
    }

    /** The first of the highest. */
    private static int likeliest(float[] scores) {
        int best = 0;
        for (int token = 1; token < scores.length; token++) {
            if (scores[token] > scores[best]) {
                best = token;
            }
        }
        return best;
    }
}
