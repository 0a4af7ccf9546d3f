"""A look at somebody's data before anything is spent on it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edge_client.data.columns import LABEL, Columns, Fields, MappedSource
from edge_client.data.examples import Example, Examples, Skipped, examples_for
from edge_client.data.sources import Row, Source
from edge_client.data.templates import Template
from edge_client.errors import DataError
from edge_client.tasks.registry import task_named
from server.simulation.data.dataset import labels_in
from server.start.columns import columns_in
from server.start.rows import Recoded, first_rows, open_rows

Count = Callable[[Sequence[str | tuple[str, str]]], list[int]]
"""Counts the tokens of texts."""

HELD_OUT, MOST_HELD_OUT = 0.2, 1000
"""The share of the rows that the server measures on, and how many of them at most."""
_FEWEST = 5
"""Rows of which a fifth is one."""
_AT_ONCE = 256
_SAMPLE = 5000
"""Rows whose tokens are counted."""


class Portion(NamedTuple):
    """Rows, and the same as examples."""

    source: Source
    examples: Examples


@dataclass(frozen=True)
class Survey:
    """The findings about a data set."""

    name: str
    task: str
    fields: Fields
    guessed: bool
    others: dict[str, int]
    """Further columns that could be the classes, and how many values each has."""
    labels: tuple[str, ...]
    train: Portion
    held_out: Portion
    skipped: Skipped
    classes: Counter[int]
    """The number of rows of each class."""
    repeated: int
    """Rows whose text came before."""
    contradicted: int
    """The number of these that have another class than before."""
    tokens: tuple[int, ...]
    """The numbers of tokens of a sample of the rows, sorted."""
    latin: float
    """The share of the letters that English has."""
    encoding: str = ""
    """The encoding of the rows' file, where that is not UTF-8."""

    @property
    def rows(self) -> int:
        return len(self.train.examples) + len(self.held_out.examples)

    @property
    def majority(self) -> float:
        """Compute what always answering the most frequent class would score."""
        return max(self.classes.values(), default=0) / max(self.classes.total(), 1)

    def longer_than(self, length: int) -> float:
        """Return the share of the rows with more tokens."""
        return sum(count > length for count in self.tokens) / max(len(self.tokens), 1)


def surveyed(
    data: str,
    asked: Columns,
    task: str | None,
    count: Count,
    template: Template | None = None,
    suits: Callable[[str], object] = task_named,
) -> Survey:
    """Read all of the rows once, and some again; `suits` refuses a task, which the columns tell."""
    raw = open_rows(data)
    first = first_rows(raw.train)
    columns = columns_in(first, asked, task, raw.train.name)
    suits(columns.task)
    kind = task_named(columns.task)
    source = MappedSource(raw.train, columns.fields)
    labels = tuple(labels_in(source)) if kind.has_classes else ()
    if kind.has_classes and len(labels) < 2:
        what = f"all of one class, {labels[0]!r}" if labels else f"without classes{_instead(first, columns.fields)}"
        raise DataError(
            f"{raw.train.name} is {what}: give rows of two classes or more, or name their column (--label)"
            f"{_unread(source)}"
        )
    check = kind.check(labels, template)
    examples = examples_for(source, check, bad_rows="skip")
    train, held_out = Portion(source, examples), Portion(source, examples)
    if raw.test is not None:
        test = MappedSource(raw.test, columns.fields)
        held_out = Portion(test, examples_for(test, check, bad_rows="skip"))
    else:
        kept, held = examples.split(min(HELD_OUT, MOST_HELD_OUT / len(examples)))
        train, held_out = Portion(source, kept), Portion(source, held)
    if len(train.examples) + len(held_out.examples) < _FEWEST or not held_out.examples:
        raise DataError(
            f"{raw.train.name} has {len(examples)} usable row{'' if len(examples) == 1 else 's'}, too few to hold any "
            f"out to measure on: give more{_unread(source)}"
        )
    seen = _looked_through(examples)
    return Survey(
        name=raw.train.name if raw.test is None else f"{raw.train.name}, {raw.test.name}",
        task=columns.task,
        fields=columns.fields,
        guessed=columns.guessed,
        others=columns.others,
        labels=labels,
        train=train,
        held_out=held_out,
        skipped=examples.skipped,
        classes=seen.classes if kind.has_classes else Counter(),
        repeated=seen.repeated,
        contradicted=seen.contradicted if kind.has_classes else 0,
        tokens=_counted(examples, count),
        latin=seen.latin,
        encoding=raw.train.encoding if isinstance(raw.train, Recoded) else "",
    )


def _instead(rows: Sequence[Row], fields: Fields) -> str:
    """Tell what stands where a class should."""
    (column,) = fields[LABEL] if len(fields[LABEL]) == 1 else ("",)
    kinds = {type(row[column]).__name__ for row in rows if row.get(column) is not None}
    return f" ({column} holds {', '.join(sorted(kinds))})" if kinds else ""


def _unread(source: Source) -> str:
    """Tell of the rows that cannot be read, which may be why a class is missing."""
    unread = [located for located in source.rows() if located.row is None]
    return f"; {len(unread)} of its rows cannot be read: {unread[0].place} {unread[0].problem}" if unread else ""


class _Seen(NamedTuple):
    classes: Counter[int]
    repeated: int
    contradicted: int
    latin: float


def _looked_through(examples: Iterable[Example]) -> _Seen:
    classes, repeated, contradicted, latin, letters = Counter[int](), 0, 0, 0, 0
    before: dict[bytes, int] = {}
    for one in examples:
        classes[one.label] += 1
        digest = hashlib.blake2b(repr(one.texts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        repeated += digest in before
        contradicted += before.setdefault(digest, one.label) != one.label
        alphabetic = [letter for letter in one.text[:1000] if letter.isalpha()]
        letters += len(alphabetic)
        latin += sum(letter.isascii() for letter in alphabetic)
    return _Seen(classes, repeated, contradicted, latin / max(letters, 1))


def _counted(examples: Examples, count: Count) -> tuple[int, ...]:
    """Count tokens of rows from everywhere in the data."""
    chosen = np.unique(np.linspace(0, len(examples) - 1, min(_SAMPLE, len(examples)), dtype=np.int64)).tolist()
    lengths: list[int] = []
    for at in range(0, len(chosen), _AT_ONCE):
        lengths += count([examples[index].texts for index in chosen[at : at + _AT_ONCE]])
    return tuple(sorted(lengths))
