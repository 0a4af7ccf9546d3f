"""Encode texts as the fixed-shape arrays that programs take.

A batch always has the bundle's shape: short texts are padded on the right, long ones cut (of a pair, the longer text
first), and a batch with too few examples is filled with rows whose `example_weight` is zero.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from edge_client.errors import BundleError, ProgramInputError, is_panic

Ints = NDArray[np.int64]

_SETTLING = Lock()
"""A tokenizer's settings are its own, and threads share it: each has it for itself while they are others."""


class Encoded(NamedTuple):
    """A batch of texts."""

    tokens: dict[str, Ints]
    """The bundle's token inputs, [batch, length] each."""
    example_weight: NDArray[np.float32]
    """[batch]: 1 for an example, 0 for a row that only fills the batch."""
    encodings: tuple[Encoding, ...]
    """One per example, for offsets; none where tokens were chosen of each example."""


class ModelInputs(Protocol):
    """A model's inputs, as a manifest lists them."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def pad_token_id(self) -> int: ...


class TextEncoder:
    """Encodes texts for one shape of a bundle's programs."""

    def __init__(self, tokenizer: Tokenizer, manifest: ModelInputs, batch: int, length: int) -> None:
        self.batch = batch
        self.length = length
        self._inputs = manifest.inputs
        self._pad = manifest.pad_token_id
        unknown = set(manifest.inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown:
            what = ", ".join(sorted(unknown))
            raise ProgramInputError(f"texts give no {what}, which the bundle's programs take; export it again")
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str | tuple[str, str]]) -> Encoded:
        """Texts, or pairs of texts; at most a batch of them."""
        with self._settled() as tokenizer:
            encodings = tuple(tokenizer.encode_batch(list(texts)))
        for number, (encoding, text) in enumerate(zip(encodings, texts, strict=True)):
            _require_tokens(encoding, text, number)
        ids = [encoding.ids for encoding in encodings]
        return self.arranged(ids, [encoding.type_ids for encoding in encodings])._replace(encodings=encodings)

    def arranged(self, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] = ()) -> Encoded:
        """Return a batch of tokens, at most `length` of each example."""
        if not 1 <= len(ids) <= self.batch:
            raise ProgramInputError(f"expected 1 to {self.batch} texts, got {len(ids)}")
        columns = {
            "input_ids": self.filled(ids, self._pad),
            "attention_mask": self.filled([[1] * len(row) for row in ids], 0),
            "token_type_ids": self.filled(types, 0),
        }
        columns["attention_mask"][len(ids) :, 0] = 1  # attention over no token at all is not a number
        weight = (np.arange(self.batch) < len(ids)).astype(np.float32)
        return Encoded({name: columns[name] for name in self._inputs}, weight, ())

    def cut(self, text: str) -> Encoding:
        """Return a text's first tokens, as many as there is room for, with those that a tokenizer adds."""
        with self._settled() as tokenizer:
            return _require_tokens(tokenizer.encode(text), text)

    def whole(self, text: str, *, special: bool) -> Encoding:
        """Tokenize a whole text; `special`: with those that a tokenizer adds."""
        with self._settled(cuts=False) as tokenizer:
            return _require_tokens(tokenizer.encode(text, add_special_tokens=special), text)

    def lengths(self, texts: Sequence[str | tuple[str, str]]) -> list[int]:
        """Count the tokens that texts, or pairs of them, would have with room for all."""
        with self._settled(cuts=False) as tokenizer:
            return [len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]

    def opens(self, token: int) -> bool:
        """Tell whether a token is one that a tokenizer puts before texts."""
        added = self._tokenizer.get_added_tokens_decoder().get(token)
        return added is not None and added.special

    @contextmanager
    def _settled(self, *, cuts: bool = True) -> Generator[Tokenizer]:
        """Lend the caller's tokenizer with this encoder's settings; a copy would be megabytes of words."""
        tokenizer = self._tokenizer
        settings: Any = tokenizer  # the library leaves open what its dictionaries hold
        with _SETTLING:
            padding, truncation = settings.padding, settings.truncation
            tokenizer.no_padding()
            tokenizer.no_truncation()
            if cuts:
                tokenizer.enable_truncation(self.length, strategy="longest_first")
            try:
                yield tokenizer
            except BaseException as error:
                if not is_panic(error):
                    raise
                raise BundleError(f"the bundle's tokenizer fails on a text ({error}); export the model again") from None
            finally:
                if padding is not None:
                    tokenizer.enable_padding(**padding)
                tokenizer.no_truncation()
                if truncation is not None:
                    tokenizer.enable_truncation(**truncation)

    def filled(self, rows: Sequence[Sequence[int]], fill: int) -> Ints:
        """Numbers of each token, [batch, length]."""
        result = np.full((self.batch, self.length), fill, np.int64)
        for row, values in zip(result, rows, strict=False):
            row[: len(values)] = values
        return result


def _require_tokens(encoding: Encoding, text: str | tuple[str, str], number: int = 0) -> Encoding:
    if not encoding.ids:
        raise ProgramInputError(f"text {number} has no tokens: {text!r}")
    return encoding
