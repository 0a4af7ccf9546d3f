"""A device's training data as examples of a task, which checks each row (`edge_client.tasks`).

Rows are checked once for each job and then read again as training needs them: what stays in memory is where each row
starts.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

from edge_client.errors import DataError

from .sources import BadRow, Row, Source, bad_row

BadRows = Literal["refuse", "skip"]

SHOWN = 3
"""The number of bad rows that are listed one by one."""


class Example(NamedTuple):
    """One row, checked; of what follows its texts, each kind of task has its own."""

    text: str
    pair: str | None = None
    label: int = 0
    answer: str | None = None
    answer_start: int = 0
    answers: tuple[str, ...] = ()
    """The right answers, of which `answer` is the first; none where there is no answer."""
    learnt: tuple[tuple[int, int], ...] | None = None
    """The parts of the text that a language model learns; all of it where None."""
    is_whole: bool = False
    """True if the text has its special tokens in it."""
    following: tuple[Example, ...] = ()
    """Examples that stand behind it in one sequence."""

    @property
    def texts(self) -> str | tuple[str, str]:
        """The texts as a tokenizer takes them."""
        return self.text if self.pair is None else (self.text, self.pair)


Check = Callable[[Row], Example]
"""Turns a row into an example; raises `BadRow` where it is none."""


@dataclass(frozen=True)
class Skipped:
    """Rows that were left out."""

    count: int = 0
    first: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f"; and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return "; ".join(self.first) + more


class Examples(Sequence[Example]):
    """The rows of a source that fit a task, each read when it is asked for.

    Args:
        source: where the rows are.
        check: what makes an example of a row.
        places: where each row is.
        digests: of each row's content.
        skipped: what was left out.
    """

    def __init__(
        self, source: Source, check: Check, places: array[int], digests: array[int], skipped: Skipped | None = None
    ) -> None:
        self.skipped = skipped or Skipped()
        self._source = source
        self._check = check
        self._places = places
        self._digests = digests

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return self._part(range(len(self))[index])
        return self._read(self._places[index], self._digests[index])

    def _read(self, place: int, digest: int) -> Example:
        try:
            row = self._source.row(place)
            if _digest(row) == digest:
                return self._check(row)
        except (BadRow, OSError):
            pass
        raise DataError(f"{self._source.name} changed while it was in use; run again, and replace files as a whole")

    @property
    def places(self) -> array[int]:
        """The place of each row in its source."""
        return self._places

    @property
    def fingerprint(self) -> str:
        """A digest of the rows in their order."""
        return hashlib.sha256(self._digests.tobytes()).hexdigest()[:32]

    def split(self, holdout: float, seed: int = 0) -> tuple[Examples, Examples]:
        """Return the rows to train on and those held back: a row's content decides, whatever is added.

        Of two rows or more, each part has at least one.
        """
        if not 0 <= holdout < 1:
            raise DataError(f"the share held back must be from 0 to less than 1, got {holdout}")
        ranks = [_mix(digest, seed) for digest in self._digests]
        held = {i for i, rank in enumerate(ranks) if rank < holdout}
        if holdout > 0 and len(ranks) > 1:
            held |= {min(range(len(ranks)), key=ranks.__getitem__)}
            held -= {max(range(len(ranks)), key=ranks.__getitem__)}
        return self._part(i for i in range(len(self)) if i not in held), self._part(sorted(held))

    def _part(self, indices: Iterable[int]) -> Examples:
        chosen = list(indices)
        places = array("q", (self._places[i] for i in chosen))
        return Examples(self._source, self._check, places, array("Q", (self._digests[i] for i in chosen)), self.skipped)


def examples_for(source: Source, check: Check, *, bad_rows: BadRows = "refuse") -> Examples:
    """Turn the rows into examples; `skip` leaves out those that cannot be used, `refuse` gives up at the first."""
    places, digests = array("q"), array("Q")
    count, first = 0, list[str]()
    for place, at, row, broken in source.rows():
        problem = broken
        if row is not None:
            try:
                check(row)
                places.append(at)
                digests.append(_digest(row))
                continue
            except BadRow as error:
                problem = str(error)
        if bad_rows == "refuse":
            raise bad_row(source, place, problem)
        count += 1
        if len(first) < SHOWN:
            first.append(f"{place}: {problem}")
    skipped = Skipped(count, tuple(first))
    if not places:
        why = f": all {count} rows were left out ({skipped})" if count else "; it is empty"
        raise DataError(f"{source.name} has no example{why}")
    return Examples(source, check, places, digests, skipped)


# --- rows ------------------------------------------------------------------------------------------------------------


def text_of(row: Row, field: str) -> str:
    """Return a field of a row that must hold a text."""
    value = row.get(field)
    if value is None:
        raise BadRow(f"has no {field}; its fields are {', '.join(map(str, row))[:200] or 'none'}")
    if not isinstance(value, str):
        raise BadRow(f"{field} must be a text, got {type(value).__name__}")
    if not value.strip():
        raise BadRow(f"{field} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{field} holds half of a surrogate pair, which is no text") from None
    return value


def _digest(row: Row) -> int:
    """64 bits of a row's content."""
    content = repr(sorted((str(key), value) for key, value in row.items() if value is not None))
    data = content.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _mix(digest: int, seed: int) -> float:
    """Return a number from 0 to less than 1."""
    data = hashlib.blake2b(digest.to_bytes(8, "little"), digest_size=6, key=str(seed).encode()).digest()
    return int.from_bytes(data, "little") / 2**48
