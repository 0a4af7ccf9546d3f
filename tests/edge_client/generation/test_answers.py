"""Scores of answers, beside published ones and an exhaustive search."""

from itertools import combinations

import numpy as np
import pytest

from edge_client.data.examples import Example
from edge_client.generation.answers import asked_by, rouge_l


def test_the_published_example():
    """Of rouge-score's own page: precision 5/8, recall 5/9."""
    known, written = "The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log."
    assert rouge_l(written, known) == pytest.approx(0.5882352941176471)


def test_by_hand():
    assert rouge_l("It's late", "it s late!") == 1.0
    assert rouge_l("", "") == 1.0
    assert rouge_l("nothing", "") == rouge_l("", "nothing") == rouge_l("a", "b") == 0.0
    assert rouge_l("один два", "Два, один") == pytest.approx(0.5)


def test_as_an_exhaustive_search_finds():
    rng = np.random.default_rng()
    for _ in range(50):
        ours, theirs = (list(map(str, rng.integers(0, 4, rng.integers(1, 7)))) for _ in range(2))
        pieces = {
            size: {tuple(ours[i] for i in kept) for kept in combinations(range(len(ours)), size)}
            & {tuple(theirs[i] for i in kept) for kept in combinations(range(len(theirs)), size)}
            for size in range(1, 7)
        }
        longest = max((size for size, common in pieces.items() if common), default=0)
        expected = 2 * longest / (len(ours) + len(theirs))
        assert rouge_l(" ".join(ours), " ".join(theirs)) == pytest.approx(expected), (ours, theirs)


def test_the_last_answer_is_asked_for():
    example = Example("q: a! q: b!", learnt=((3, 5), (9, 11)), is_whole=True)
    assert asked_by(example) == ("q: a! q: ", "b!", True)
    assert asked_by(Example("a text")) is None
    assert asked_by(Example("all answer", learnt=((0, 10),))) is None
    assert asked_by(Example("nothing learnt", learnt=())) is None
