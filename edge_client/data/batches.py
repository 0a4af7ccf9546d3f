"""A round's batches: the same examples in the same order whenever they are drawn from the same seed.

Which examples stand together is drawn once for a round; a later pass visits the same batches in another order. What
was computed for a batch before the cut can so be kept for the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array

from .examples import Example

if TYPE_CHECKING:
    from .encoder import Encoded, TextEncoder


class Batch(NamedTuple):
    """Examples as programs take them; rows that only fill the batch weigh nothing."""

    number: int
    """Among the round's batches."""
    tokens: dict[str, Array]
    """[batch, length] each"""
    labels: Array
    weight: NDArray[np.float32]
    """[batch]"""

    @property
    def examples(self) -> int:
        return int(np.count_nonzero(self.weight))


class Labelled(NamedTuple):
    """A batch of examples, at most, with their arrays."""

    examples: list[Example]
    encoded: Encoded
    labels: Array

    @property
    def batch(self) -> Batch:
        return Batch(0, self.encoded.tokens, self.labels, self.encoded.example_weight)


Encode = Callable[["TextEncoder", Sequence[Example]], tuple["Encoded", Array]]
"""Makes arrays of at most a batch of examples, and their labels, as a kind of task has them."""


class Batches:
    """The batches of a round over some examples."""

    def __init__(self, examples: Sequence[Example], encoder: TextEncoder, encode: Encode, seed: int) -> None:
        self._examples = examples
        self.encoder = encoder
        self._encode = encode
        self._seed = seed
        self._order = shuffled(len(examples), seed, 0)

    def __len__(self) -> int:
        """Batches in a pass; the last may have fewer examples."""
        return len(range(0, len(self._examples), self.encoder.batch))

    def at(self, step: int) -> Batch:
        """Return the batch of a step of the round."""
        epoch, position = divmod(step, len(self))
        number = position if epoch == 0 else shuffled(len(self), self._seed, epoch)[position]
        start = number * self.encoder.batch
        chosen = [self._examples[i] for i in self._order[start : start + self.encoder.batch]]
        encoded, labels = self._encode(self.encoder, chosen)
        return Batch(number, encoded.tokens, labels, encoded.example_weight)


def in_order(examples: Sequence[Example], encoder: TextEncoder, encode: Encode) -> Iterator[Labelled]:
    """Yield all examples once, in batches."""
    for start in range(0, len(examples), encoder.batch):
        chosen = list(examples[start : start + encoder.batch])
        yield Labelled(chosen, *encode(encoder, chosen))


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    """Return the numbers below `count` in an order of this seed and pass.

    Sorted by a hash of each: unlike a generator's methods, the same in every version of every library.
    """
    from edge_client.gradient.philox import philox

    with np.errstate(over="ignore"):
        index = np.arange(count, dtype=np.uint64)
        fixed = [np.full(count, word, np.uint64) for word in (epoch, 0, 0xFFFFFFFF)]
        high, low, *_ = philox([index, *fixed], seed)
    return np.lexsort((low, high)).tolist()
