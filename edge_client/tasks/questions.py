"""Extractive questions (`qa`): an answer is a piece of the question's context, or there is none.

A row has `question`, `context` and `answers`: SQuAD's {"text": [...], "answer_start": [...]}, empty where there is no
answer. An example's text is the question, its pair the context.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.bundle.manifest import IGNORED, ModelSpec
from edge_client.data.batches import Labelled
from edge_client.data.examples import Check, Example, text_of
from edge_client.data.sources import BadRow, Row
from edge_client.errors import ProgramInputError, SpryError

from .task import Prediction, Score, ScoreKind, TaskType, Text

if TYPE_CHECKING:
    from tokenizers import Encoding

    from edge_client.data.encoder import Encoded, TextEncoder
    from edge_client.data.templates import Template

LONGEST = 30
"""Tokens of an answer, at most."""


class Questions(TaskType):
    name = "qa"
    fields = ("question", "context", "answers")
    topic = "title"
    scores = (ScoreKind("f1", "F1"), ScoreKind("exact_match", "exact match"))
    counted = "exact_match"

    def check(self, labels: Sequence[str], template: Template | None = None) -> Check:
        return _question

    def asked(self, text: Text) -> Example:
        if isinstance(text, str):
            raise SpryError("this job answers questions: give pairs of a question and its context")
        return super().asked(text)

    def labels(self, encoder: TextEncoder, examples: Sequence[Example], encoded: Encoded) -> Array:
        """[batch, 2]: the answers' first and last tokens.

        An unanswerable question points at token 0; an answer that was cut off carries IGNORED.
        """
        labels = np.full(self.label_shape(encoder.batch, encoder.length), IGNORED, np.int64)
        for row, example, encoding in zip(labels, examples, encoded.encodings, strict=False):
            row[:] = _span(example, encoding)
        return labels

    def label_shape(self, batch: int, length: int) -> tuple[int, ...]:
        return batch, 2

    def label_limit(self, logits: tuple[int, ...], model: ModelSpec) -> int:
        """Labels are positions, of logits [batch, length, 2]."""
        return logits[1]

    def right(self, logits: NDArray[Any], part: Labelled) -> list[bool]:
        """Compare with any of the answers, as `exact_match` does."""
        answered = zip(answers(logits, part), part.examples, strict=True)
        return [exact_match(answer, example.answers) == 1 for answer, example in answered]

    def score(self, logits: NDArray[Any], part: Labelled) -> Score:
        pairs = [(answer, one.answers) for answer, one in zip(answers(logits, part), part.examples, strict=True)]
        sums = {"exact_match": sum(exact_match(*pair) for pair in pairs), "f1": sum(f1(*pair) for pair in pairs)}
        return Score(len(pairs), sums)

    def read(
        self, logits: NDArray[Any], part: Labelled, labels: Sequence[str], token: Callable[[int], str]
    ) -> list[Prediction]:
        return [Prediction(answer) for answer in answers(logits, part)]


# --- rows ------------------------------------------------------------------------------------------------------------


def _question(row: Row) -> Example:
    question, context = text_of(row, "question"), text_of(row, "context")
    given = _answers(row.get("answers"))
    if not given.text:
        return Example(question, context)
    answer, start = given.text[0], given.answer_start[0]
    if context[start : start + len(answer)] != answer:
        raise BadRow(f"the answer {answer[:80]!r} is not at position {start} of its context")
    return Example(question, context, answer=answer, answer_start=start, answers=tuple(given.text))


class _Answers(msgspec.Struct):
    """SQuAD's way to write answers down."""

    text: list[str] = []
    answer_start: list[int] = []


class _Answer(msgspec.Struct):
    text: str
    answer_start: int


def _answers(value: object) -> _Answers:
    """Read all answers; none where the context holds none."""
    if isinstance(value, str) and value.strip():
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadRow(f"answers is not JSON: {error}") from None
    try:
        if isinstance(value, list):
            many = msgspec.convert(value, list[_Answer])
            given = _Answers([one.text for one in many], [one.answer_start for one in many])
        else:
            given = msgspec.convert(value or {}, _Answers)
    except msgspec.ValidationError as error:
        raise BadRow(f'answers must look like {{"text": ["..."], "answer_start": [0]}}: {error}') from None
    if len(given.text) != len(given.answer_start) or any(start < 0 for start in given.answer_start):
        raise BadRow("answers must have a text and a position from 0 on each")
    return given if given.text and given.text[0] else _Answers()


# --- spans -----------------------------------------------------------------------------------------------------------


def _span(example: Example, encoding: Encoding) -> tuple[int, int]:
    if not example.answer:
        return 0, 0
    context, begin, stop = example.pair or "", example.answer_start, example.answer_start + len(example.answer)
    if context[begin:stop] != example.answer:
        raise ProgramInputError(
            f"the answer {example.answer!r} is not at position {begin} of its context; {context[begin:stop]!r} is"
        )
    first, last = encoding.char_to_token(begin, 1), encoding.char_to_token(stop - 1, 1)
    if first is None or last is None:
        return IGNORED, IGNORED
    return first, last


def answers(logits: NDArray[Any], part: Labelled, *, longest: int = LONGEST) -> list[str | None]:
    """Return each question's likeliest answer as text, from logits [questions, length, 2]; None where there is none.

    Spans compete with the null answer, token 0.
    """
    texts: list[str | None] = []
    for scores, example, encoding in zip(logits, part.examples, part.encoded.encodings, strict=False):
        context = [i for i, text in enumerate(encoding.sequence_ids) if text == 1]
        span = _best_span(scores[context], longest, null=float(scores[0].sum())) if context else None
        if span is None:
            texts.append(None)
        else:
            first, last = (encoding.offsets[context[i]] for i in span)
            texts.append((example.pair or "")[first[0] : last[1]])
    return texts


def _best_span(scores: NDArray[Any], longest: int, null: float) -> tuple[int, int] | None:
    """Return the first and last position with the highest score, of [tokens, 2], that beats the null answer's."""
    totals = scores[:, 0, None] + scores[None, :, 1]
    tokens = np.arange(len(scores))
    length = tokens[None, :] - tokens[:, None] + 1
    totals = np.where((length >= 1) & (length <= longest), totals, -np.inf)
    first, last = divmod(int(totals.argmax()), len(scores))
    return (first, last) if totals[first, last] > null else None


# --- scores, as SQuAD has them ---------------------------------------------------------------------------------------

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def exact_match(predicted: str | None, golds: Sequence[str]) -> float:
    """Return 1 if a prediction is one of the gold answers, else 0.

    Case, punctuation, articles and white space do not count. An empty text says that there is no answer: it is right
    where there is no gold answer, and wrong everywhere else.
    """
    return _best(_same, predicted, golds)


def f1(predicted: str | None, golds: Sequence[str]) -> float:
    """Compute the harmonic mean of the shares of words that prediction and the best gold answer have in common."""
    return _best(_overlap, predicted, golds)


def words(text: str) -> list[str]:
    """Normalize a text to the words that count (SQuAD)."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _best(fit: Callable[[list[str], list[str]], float], predicted: str | None, golds: Sequence[str]) -> float:
    known = [gold for gold in map(words, golds) if gold] or [list[str]()]
    return max(fit(words(predicted or ""), gold) for gold in known)


def _same(predicted: list[str], gold: list[str]) -> float:
    return float(predicted == gold)


def _overlap(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return _same(predicted, gold)
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))
