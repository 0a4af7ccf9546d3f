"""A language model's examples as tokens: which of them are learnt, and which are left out where there are too many.

    prompt prompt prompt answer answer end        what is predicted: answer answer end

A sequence has room for so many tokens. Of a longer example the stretch stays that has the most of its answers, the
first of several; a token that opens every text stays before it. Short examples may share a sequence (`Packed`):
programs are not told which tokens see which, so a later one sees those before it, and its positions count on. Its first
token, which would be predicted from another's, is not learnt.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from edge_client.bundle.manifest import IGNORED

from .examples import Example

if TYPE_CHECKING:
    from .encoder import TextEncoder


class Sequenced(NamedTuple):
    """Tokens of a sequence."""

    ids: list[int]
    labels: list[int]
    """The tokens, or IGNORED where a token is not learnt."""


def sequence_of(example: Example, encoder: TextEncoder) -> Sequenced:
    """Return an example with those that follow it."""
    ids, labels = list[int](), list[int]()
    for one in (example, *example.following):
        part = _alone(one, encoder)
        if ids:
            part.labels[0] = IGNORED
        ids += part.ids
        labels += part.labels
    return Sequenced(ids[: encoder.length], labels[: encoder.length])


def _alone(example: Example, encoder: TextEncoder) -> Sequenced:
    if example.learnt is None:
        ids = encoder.cut(example.text).ids
        return Sequenced(list(ids), list(ids))
    encoding = encoder.whole(example.text, special=not example.is_whole)
    ids, offsets = np.array(encoding.ids), np.array(encoding.offsets, np.int64).reshape(-1, 2)
    learnt = np.zeros(len(ids), np.bool_)
    for start, stop in example.learnt:
        learnt |= (offsets[:, 0] < stop) & (start < offsets[:, 1])
    kept = stretch(learnt, encoder.length, opened=bool(len(ids)) and encoder.opens(int(ids[0])))
    ids, learnt = ids[kept], learnt[kept]
    return Sequenced(ids.tolist(), np.where(learnt, ids, IGNORED).tolist())


def stretch(learnt: NDArray[np.bool_], length: int, *, opened: bool) -> NDArray[np.int64]:
    """Return the places of at most so many tokens, with the most that are learnt; if `opened`, the first stays."""
    places = np.arange(len(learnt))
    if len(learnt) <= length:
        return places
    first = int(opened and length > 1)
    room = length - first
    counted = np.concatenate(([0], np.cumsum(learnt)))
    starts = np.arange(first, len(learnt) - room + 1)
    predicted = starts + 1 - first  # the first token of all is predicted from nothing
    start = int(starts[np.argmax(counted[starts + room] - counted[predicted])])
    return np.concatenate((places[:first], places[start : start + room]))


class Packs(Protocol):
    """The part of a client's training that decides about sequences."""

    @property
    def pack(self) -> bool: ...


def taken(examples: Sequence[Example], encoder: TextEncoder, training: Packs) -> Sequence[Example]:
    """Choose what steps take as examples: rows as they are, or packed into sequences."""
    return Packed(examples, encoder) if training.pack else examples


class Packed(Sequence[Example]):
    """Examples in as few sequences as it takes when each goes, the longest first, where it fits best."""

    def __init__(self, examples: Sequence[Example], encoder: TextEncoder) -> None:
        self._examples = examples
        self._groups = fitted([len(sequence_of(example, encoder).ids) for example in examples], encoder.length)

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        first, *others = (self._examples[number] for number in self._groups[index])
        return first._replace(following=tuple(others))


def fitted(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Groups of numbers whose lengths together are no more than there is room for."""
    groups: list[list[int]] = []
    left: list[tuple[int, int]] = []  # in each group, sorted
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        place = bisect_left(left, (lengths[number], -1))
        free, group = left.pop(place) if place < len(left) else (room, len(groups))
        if group == len(groups):
            groups.append([])
        groups[group].append(number)
        insort(left, (free - lengths[number], group))
    return groups
