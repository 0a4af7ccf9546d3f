"""A data set to simulate with: a folder, or one of Hugging Face; its rows are read and checked as a device does it.

    FOLDER/train.jsonl, .json or .csv   what the clients have
    FOLDER/test.jsonl, .json or .csv    what the global model is tested on
    FOLDER/labels.json                  the classes' names, a JSON list; else those that train has, sorted
    NAME or NAME:CONFIGURATION          of Hugging Face, by its library `datasets` (extra `hub`)

Rows are read as training asks for them; what stays in memory is where each row starts, and its kind.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from edge_client.data.columns import GROUP, LABEL, Columns, MappedSource, fields_of
from edge_client.data.examples import BadRows, Examples, examples_for
from edge_client.data.sources import BadRow, CsvSource, Located, Row, Source, json_source
from edge_client.data.templates import Template
from edge_client.errors import DataError
from edge_client.tasks.classification import class_name, class_number
from edge_client.tasks.registry import task_named
from edge_client.tasks.task import TaskType
from server.jobs.presets import FEW_ROWS, has_few_rows
from server.simulation.data import hub
from server.simulation.data.split import Kinds

LABELS_FILE = "labels.json"
MOST_LABELS = 1000
"""Found in a column; more are rather numbers or names of something else."""
_FOUND = Columns()


@dataclass(frozen=True)
class Dataset:
    """Rows as examples of a task, and the kinds of those that clients have."""

    name: str
    task: str
    labels: tuple[str, ...]
    train: Examples
    test: Examples
    classes: Kinds
    """The label of each train row; for other tasks, its group."""
    groups: Kinds
    """The groups that the rows are split over."""
    by: str
    """The column of the groups, or empty where they are the labels."""

    @property
    def fingerprint(self) -> str:
        """A digest of the rows, their order and their labels."""
        parts = [self.task, *self.labels, self.train.fingerprint, self.test.fingerprint]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def open_dataset(
    data: str,
    task: str,
    *,
    columns: Columns = _FOUND,
    by: str = "",
    labels: Sequence[str] = (),
    bad_rows: BadRows = "refuse",
    template: Template | None = None,
) -> Dataset:
    """Read a folder's or a Hugging Face dataset's rows as examples.

    Args:
        data: the folder, or the dataset's name.
        task: the name of its kind.
        columns: what holds the text, its pair and the label; found by their names where empty.
        by: the column to split by; the label when left out, or a question's title.
        labels: the classes' names; those of the data when left out.
        bad_rows: what to do with rows that cannot be used.
        template: makes texts of conversations.
    """
    kind = task_named(task)
    raw = _folder(Path(data)) if _file(Path(data), "train") else _hub(data, kind, columns)
    by = by or kind.topic
    fields = fields_of(kind.fields, columns, raw.columns, raw.train.name, converses=kind.converses)
    if by and by not in raw.columns:
        raise DataError(
            f"{raw.train.name} has no column {by!r} to split over; its columns are {', '.join(raw.columns)[:200]}: "
            "name another (--by)"
        )
    test = MappedSource(raw.test, fields)
    train: Source = MappedSource(raw.train, fields | {GROUP: (by,)} if by else fields)
    labels = tuple(labels or raw.labels or labels_in(train)) if kind.has_classes else ()
    classes = groups = None
    if labels and LABEL in kind.fields:
        train = classes = _NotingSource(train, _class_of(labels), labels)
    if by or classes is None:
        train = groups = _NotingSource(train, _group_of(by) if by else lambda _: task)
    check = kind.check(labels, template)
    examples = examples_for(train, check, bad_rows=bad_rows)
    noted = [source.kinds(examples.places) for source in (classes, groups) if source is not None]
    return Dataset(
        name=raw.name,
        task=task,
        labels=labels,
        train=examples,
        test=examples_for(test, check, bad_rows=bad_rows),
        classes=noted[0],
        groups=noted[-1],
        by=by,
    )


def few_rows_in(data: str, task: str, columns: Columns = _FOUND) -> bool:
    """Look at no more rows than it takes to tell (`server.jobs.presets.has_few_rows`)."""
    kind = task_named(task)
    raw = _folder(Path(data)) if _file(Path(data), "train") else _hub(data, kind, columns)
    rows = sum(1 for _ in islice(raw.train.rows(), FEW_ROWS + 1))
    if rows > FEW_ROWS or not kind.has_classes:
        return False
    fields = fields_of(kind.fields, columns, raw.columns, raw.train.name, converses=kind.converses)
    return has_few_rows(task, len(raw.labels or labels_in(MappedSource(raw.train, fields))), rows)


# --- where rows come from --------------------------------------------------------------------------------------------


class _Raw(NamedTuple):
    """A data set as it was found."""

    name: str
    train: Source
    test: Source
    columns: Sequence[str]
    labels: Sequence[str]


def _folder(folder: Path) -> _Raw:
    train, test = _file(folder, "train"), _file(folder, "test")
    if train is None or test is None:
        raise DataError(f"{folder} has no test.jsonl or test.csv, which the global model is tested on; put one there")
    first = next((located.row for located in train.rows() if located.row is not None), None)
    if first is None:
        raise DataError(f"{train.name} has no row that can be read; give a row for each example")
    return _Raw(_name(str(folder)), train, test, list(map(str, first)), _names(folder / LABELS_FILE))


def _name(data: str) -> str:
    return Path(data).resolve().name if Path(data).is_dir() else data


def _file(folder: Path, part: str) -> Source | None:
    for end in (".jsonl", ".json"):
        if (path := folder / f"{part}{end}").is_file():
            return json_source(path)
    return CsvSource(path, known=()) if (path := folder / f"{part}.csv").is_file() else None


def _names(path: Path) -> Sequence[str]:
    if not path.is_file():
        return ()
    try:
        names = msgspec.json.decode(path.read_bytes(), type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f'{path} must be a JSON list of the classes\' names, as in ["no", "yes"]: {error}') from None
    if not names or len(set(names)) < len(names):
        raise DataError(f"{path} must name each class once, and one at least; it has {', '.join(names) or 'none'}")
    return names


def _hub(data: str, kind: TaskType, columns: Columns) -> _Raw:
    splits = hub.open_splits(data)
    known = hub.columns(splits, data)
    fields = fields_of(kind.fields, columns, known, data, converses=kind.converses)
    label = next(iter(fields.get("label", ())), "")
    train, test = hub.labelled(splits, data, label)
    return _Raw(_name(data), train, test, known, hub.names(splits, label))


def labels_in(train: Source) -> Sequence[str]:
    """Names sorted; of numbers, all from 0 on, so that each stays what it is."""
    values = (class_name(located.row.get("label")) for located in train.rows() if located.row is not None)
    labels = {str(value).strip() for value in values if isinstance(value, str | int) and value != ""}
    if len(labels) > MOST_LABELS:
        raise DataError(f"{train.name} has {len(labels):,} different labels; name the column of the classes (--label)")
    if labels and all(value.isdecimal() for value in labels):
        highest = max(map(int, labels))
        if highest >= MOST_LABELS:
            raise DataError(f"{train.name} has the label {highest}; labels are names, or numbers below {MOST_LABELS}")
        return [str(number) for number in range(highest + 1)]
    return sorted(labels)


# --- what kind a row is of -------------------------------------------------------------------------------------------


class _NotingSource(Source):
    """Notes the kind of each row while all of them are read once.

    Args:
        source: the rows.
        kind_of: a row's kind, by its name.
        names: of the kinds that are known before.
    """

    def __init__(self, source: Source, kind_of: Callable[[Row], str], names: Sequence[str] = ()) -> None:
        self.name = source.name
        self.row = source.row
        self._source = source
        self._kind_of = kind_of
        self._numbers = {name: number for number, name in enumerate(names)}
        self._places, self._noted = array("q"), array("q")

    def rows(self) -> Iterator[Located]:
        for located in self._source.rows():
            if located.row is None:
                yield located
                continue
            try:
                kind = self._kind_of(located.row)
            except BadRow as error:
                yield located._replace(row=None, problem=str(error))
                continue
            self._places.append(located.at)
            self._noted.append(self._numbers.setdefault(kind, len(self._numbers)))
            yield located

    def kinds(self, places: Sequence[int]) -> Kinds:
        """Look up the kinds of the rows at these places, in the order in which they were read."""
        rows = np.searchsorted(np.asarray(self._places), np.asarray(places))
        return Kinds(tuple(self._numbers), np.asarray(self._noted)[rows])


def _class_of(labels: Sequence[str]) -> Callable[[Row], str]:
    numbers = {name: number for number, name in enumerate(labels)}
    return lambda row: labels[class_number(row, numbers)]


def _group_of(by: str) -> Callable[[Row], str]:
    def named(row: Row) -> str:
        value = row.get(GROUP)
        if value is None or value == "":
            raise BadRow(f"has no {by}, the column to split by")
        return str(value)

    return named
