"""Exact match and F1 of answers to questions, as SQuAD scores them: by the gold answer that a prediction fits best.

Case, punctuation, articles and white space do not count. That there is no answer is the empty text: it is right where
there is no gold answer, and wrong everywhere else.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class Scores(NamedTuple):
    """Means over questions, from 0 to 1."""

    exact_match: float
    f1: float


def scores(pairs: Iterable[tuple[str | None, Sequence[str]]]) -> Scores:
    """Of predictions, each with its gold answers."""
    found = [(exact_match(predicted, golds), f1(predicted, golds)) for predicted, golds in pairs]
    return Scores(*(sum(column) / len(found) for column in zip(*found, strict=True))) if found else Scores(0.0, 0.0)


def exact_match(predicted: str | None, golds: Sequence[str]) -> float:
    return _best(_same, predicted, golds)


def f1(predicted: str | None, golds: Sequence[str]) -> float:
    """The harmonic mean of the shares of words that prediction and answer have in common."""
    return _best(_overlap, predicted, golds)


def words(text: str) -> list[str]:
    """What of a text counts."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


Score = Callable[[list[str], list[str]], float]


def _best(score: Score, predicted: str | None, golds: Sequence[str]) -> float:
    known = [gold for gold in map(words, golds) if gold] or [list[str]()]
    return max(score(words(predicted or ""), gold) for gold in known)


def _same(predicted: list[str], gold: list[str]) -> float:
    return float(predicted == gold)


def _overlap(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return _same(predicted, gold)
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))
