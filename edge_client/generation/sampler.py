"""Choose the next token: the likeliest, or one drawn from the likely.

The numbers are those of transformers' `generate`: a repeated token's logit is divided by the penalty (multiplied where
it is negative), then all are divided by the temperature, then the `top_k` highest are kept, then the fewest whose
probabilities add up to `top_p`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Floats
from edge_client.errors import ProgramInputError

_WORD = 1 << 64


@dataclass(frozen=True)
class Sampling:
    """The settings for choosing the next token."""

    temperature: float = 0.0
    """0 takes the likeliest; 1 draws by the model's own probabilities; above, the unlikely come more often."""
    top_k: int = 0
    """Draw from this many of the likeliest tokens; 0: from all."""
    top_p: float = 1.0
    """Draw from the fewest likeliest whose probabilities add up to this; 1: from all."""
    repetition_penalty: float = 1.0
    """Above 1, tokens of the prompt and the answer come less often again."""
    seed: int | None = None
    """The same seed gives the same text; None: another every time."""

    def check(self) -> None:
        """Refuse what has no meaning."""
        if not 0 <= self.temperature < float("inf"):
            raise ProgramInputError(f"temperature must be 0 (the likeliest token) or more, got {self.temperature:g}")
        if self.top_k < 0:
            raise ProgramInputError(f"top_k must be 0 (all tokens) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ProgramInputError(f"top_p must be above 0 and at most 1 (all tokens), got {self.top_p:g}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ProgramInputError(f"repetition_penalty must be above 0 (1: none), got {self.repetition_penalty:g}")


class SplitMix:
    """Vigna's SplitMix64, which Java has too: the same seed draws the same text there. For text, not for secrets."""

    def __init__(self, seed: int) -> None:
        self._state = seed % _WORD

    def words(self) -> Iterator[int]:
        """64 bits each, without end."""
        while True:
            self._state = (self._state + 0x9E3779B97F4A7C15) % _WORD
            mixed = (self._state ^ self._state >> 30) * 0xBF58476D1CE4E5B9 % _WORD
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % _WORD
            yield mixed ^ mixed >> 31

    def next(self) -> float:
        """Return the next number from 0 to less than 1."""
        return (next(self.words()) >> 11) * 2.0**-53


class Sampler:
    """Chooses tokens one after the other."""

    def __init__(self, sampling: Sampling) -> None:
        sampling.check()
        self.sampling = sampling
        self._random = SplitMix(secrets.randbits(64) if sampling.seed is None else sampling.seed)

    def choose(self, logits: Floats, seen: Collection[int]) -> int:
        """Choose the next token by the logits of the whole vocabulary, behind the tokens that were seen."""
        scores = processed(logits, seen, self.sampling)
        if self.sampling.temperature == 0:
            return int(scores.argmax())
        shares = probabilities(scores)
        total = np.cumsum(shares, dtype=np.float64)
        place = int(np.searchsorted(total, self._random.next() * float(total[-1]), side="right"))
        return min(place, int(np.flatnonzero(shares)[-1]))


def processed(logits: Floats, seen: Collection[int], sampling: Sampling) -> Floats:
    """Logits that tokens are drawn by; of those that are not, minus infinity."""
    scores = _repeated_less(logits, seen, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return scores
    scores = np.asarray(scores / np.float32(sampling.temperature), np.float32)
    if 0 < sampling.top_k < len(scores):
        lowest: float = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        scores = _without(scores, np.flatnonzero(scores < lowest))
    if sampling.top_p < 1:
        ascending = np.argsort(scores, kind="stable")
        below = np.cumsum(probabilities(scores)[ascending])
        scores = _without(scores, ascending[:-1][below[:-1] <= 1 - sampling.top_p])  # the likeliest always stays
    return scores


def _without(scores: Floats, tokens: NDArray[np.int64]) -> Floats:
    left: Floats = np.array(scores)
    left[tokens] = -np.inf
    return left


def _repeated_less(logits: Floats, seen: Collection[int], penalty: float) -> Floats:
    if penalty == 1 or not seen:
        return logits
    tokens = np.array(sorted(set(seen)), np.int64)
    of_seen: Floats = logits[tokens]
    scores: Floats = np.array(logits)
    scores[tokens] = np.where(of_seen < 0, of_seen * np.float32(penalty), of_seen / np.float32(penalty))
    return scores


def probabilities(scores: Floats) -> Floats:
    shares: Floats = np.exp(scores - scores.max())
    return np.asarray(shares / shares.sum(), np.float32)
