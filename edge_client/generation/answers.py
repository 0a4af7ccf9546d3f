"""Score a language model's answers, written in full: the same as the known ones, or with as much in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edge_client.data.examples import Example
from edge_client.tasks.questions import exact_match

from .generator import GenerationConfig, Generator

LONGEST = 256
"""Tokens of an answer, at most."""
EXACT_MATCH, ROUGE_L = "exact_match", "rouge_l"


class Asked(NamedTuple):
    """A row's question, and its answer."""

    prompt: str
    answer: str
    is_whole: bool
    """True if the prompt has its special tokens in it."""


def asked_by(example: Example) -> Asked | None:
    """Return the last answer of a row with what comes before it; None where a row has no question."""
    if not example.learnt or not example.learnt[-1][0]:
        return None
    start, stop = example.learnt[-1]
    return Asked(example.text[:start], example.text[start:stop], example.is_whole)


def scores_of(generator: Generator, examples: Sequence[Example], most: int) -> dict[str, float]:
    """Means over at most so many rows, evenly spread, that ask something and leave room for the answer.

    As the likeliest tokens follow each other; an answer of more than LONGEST is cut there. Nothing where no row asks.
    """
    asked = [one for one in map(asked_by, examples) if one is not None]
    chosen = asked[:: -(-len(asked) // most)] if asked else []
    pairs = list(_written(generator, chosen))
    if not pairs:
        return {}
    sums = {
        EXACT_MATCH: sum(exact_match(written, [answer]) for written, answer in pairs),
        ROUGE_L: sum(rouge_l(written, answer) for written, answer in pairs),
    }
    return {name: round(value / len(pairs), 6) for name, value in sums.items()}


def _written(generator: Generator, asked: Sequence[Asked]) -> Iterator[tuple[str, str]]:
    """Generate an answer, beside the one that is known, without the token that ends it."""
    for one in asked:
        prompt = generator.encoded(one.prompt, special=not one.is_whole)
        room = generator.decoder.length - len(prompt)
        if room >= 1:
            yield (
                "".join(generator.text(prompt, GenerationConfig(max_tokens=min(LONGEST, room)))),
                generator.plain(one.answer),
            )


def rouge_l(written: str, known: str) -> float:
    """Compute the harmonic mean of the longest common subsequence's shares of the words of both texts (ROUGE-L)."""
    ours, theirs = _words(written), _words(known)
    common = _longest_common(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else float(not ours and not theirs)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower().replace("_", " "))


def _longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Compute the length of the longest sequence of words that both have in this order."""
    lengths = [0] * (len(second) + 1)
    for word in first:
        before = 0
        for place, other in enumerate(second, start=1):
            here = before + 1 if word == other else max(lengths[place], lengths[place - 1])
            before, lengths[place] = lengths[place], here
    return lengths[-1]
