"""From texts to the fixed-shape arrays that programs take, and from logits back to answers.

A batch always has the bundle's shape: short texts are padded on the right, long ones cut (of a pair, the longer text
first), and a batch with too few examples is filled with rows whose `example_weight` is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from edge_client.bundle.manifest import IGNORED
from edge_client.errors import ProgramInputError

Ints = NDArray[np.int64]


class Encoded(NamedTuple):
    """A batch of texts."""

    tokens: dict[str, Ints]
    """The bundle's token inputs, [batch, length] each."""
    example_weight: NDArray[np.float32]
    """[batch]: 1 for an example, 0 for a row that only fills the batch."""
    encodings: tuple[Encoding, ...]
    """One per example, for offsets."""


class Question(NamedTuple):
    """An extractive question; one without an answer cannot be answered from its context."""

    question: str
    context: str
    answer: str | None = None
    answer_start: int = 0


class Inputs(Protocol):
    """What a model reads, as a manifest says it."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def pad_token_id(self) -> int: ...


class TextEncoder:
    """Encodes texts for one shape of a bundle's programs."""

    def __init__(self, tokenizer: Tokenizer, manifest: Inputs, batch: int, length: int) -> None:
        self.batch = batch
        self.length = length
        self._inputs = manifest.inputs
        self._pad = manifest.pad_token_id
        unknown = set(manifest.inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown:
            what = ", ".join(sorted(unknown))
            raise ProgramInputError(f"texts give no {what}, which the bundle's programs take; export it again")
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())  # its settings are changed below
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length, strategy="longest_first")

    def encode(self, texts: Sequence[str | tuple[str, str]]) -> Encoded:
        """Texts, or pairs of texts; at most a batch of them."""
        if not 1 <= len(texts) <= self.batch:
            raise ProgramInputError(f"expected 1 to {self.batch} texts, got {len(texts)}")
        encodings = tuple(self._tokenizer.encode_batch(list(texts)))
        if not all(encoding.ids for encoding in encodings):
            empty = next(i for i, encoding in enumerate(encodings) if not encoding.ids)
            raise ProgramInputError(f"text {empty} has no tokens: {texts[empty]!r}")
        columns = {
            "input_ids": self._rows([encoding.ids for encoding in encodings], self._pad),
            "attention_mask": self._rows([encoding.attention_mask for encoding in encodings], 0),
            "token_type_ids": self._rows([encoding.type_ids for encoding in encodings], 0),
        }
        columns["attention_mask"][len(texts) :, 0] = 1  # attention over no token at all is not a number
        weight = (np.arange(self.batch) < len(texts)).astype(np.float32)
        return Encoded({name: columns[name] for name in self._inputs}, weight, encodings)

    def _rows(self, rows: Sequence[Sequence[int]], fill: int) -> Ints:
        result = np.full((self.batch, self.length), fill, np.int64)
        for row, values in zip(result, rows, strict=False):
            row[: len(values)] = values
        return result

    def classes(self, labels: Sequence[int]) -> Ints:
        """Labels [batch] of a classification; filling rows get class 0."""
        if not 1 <= len(labels) <= self.batch:
            raise ProgramInputError(f"expected 1 to {self.batch} labels, got {len(labels)}")
        result = np.zeros(self.batch, np.int64)
        result[: len(labels)] = labels
        return result

    def questions(self, questions: Sequence[Question]) -> tuple[Encoded, Ints]:
        """Questions with the labels [batch, 2] of their answers' first and last tokens.

        An unanswerable question points at token 0; an answer that was cut off carries IGNORED.
        """
        encoded = self.encode([(question.question, question.context) for question in questions])
        labels = np.full((self.batch, 2), IGNORED, np.int64)
        for row, question, encoding in zip(labels, questions, encoded.encodings, strict=False):
            row[:] = _span(question, encoding)
        return encoded, labels

    def next_tokens(self, texts: Sequence[str]) -> tuple[Encoded, Ints]:
        """Texts with labels [batch, length] of a language model: the tokens themselves, IGNORED on padding."""
        encoded = self.encode(texts)
        rows = [encoding.ids for encoding in encoded.encodings]
        return encoded, self._rows(rows, IGNORED)


def answers(
    logits: NDArray[np.float32], questions: Sequence[Question], encoded: Encoded, *, max_tokens: int = 30
) -> list[str | None]:
    """The likeliest answer's text for each question, from logits [batch, length, 2]; None where there is no answer.

    Spans compete with the null answer, token 0.
    """
    found: list[str | None] = []
    for scores, question, encoding in zip(logits, questions, encoded.encodings, strict=False):
        context = [i for i, part in enumerate(encoding.sequence_ids) if part == 1]
        span = _best_span(scores[context], max_tokens, null=float(scores[0].sum())) if context else None
        if span is None:
            found.append(None)
        else:
            first, last = (encoding.offsets[context[i]] for i in span)
            found.append(question.context[first[0] : last[1]])
    return found


def _best_span(scores: NDArray[np.float32], longest: int, null: float) -> tuple[int, int] | None:
    """The first and last position with the highest score, of [tokens, 2], that beats the null answer's."""
    totals = scores[:, 0, None] + scores[None, :, 1]
    tokens = np.arange(len(scores))
    length = tokens[None, :] - tokens[:, None] + 1
    totals = np.where((length >= 1) & (length <= longest), totals, -np.inf)
    first, last = divmod(int(totals.argmax()), len(scores))
    return (first, last) if totals[first, last] > null else None


def _span(question: Question, encoding: Encoding) -> tuple[int, int]:
    if not question.answer:
        return 0, 0
    begin, stop = question.answer_start, question.answer_start + len(question.answer)
    if question.context[begin:stop] != question.answer:
        raise ProgramInputError(
            f"the answer {question.answer!r} is not at position {begin} of its context; "
            f"{question.context[begin:stop]!r} is"
        )
    first, last = encoding.char_to_token(begin, 1), encoding.char_to_token(stop - 1, 1)
    if first is None or last is None:
        return IGNORED, IGNORED
    return first, last
