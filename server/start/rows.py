"""Read a new project's rows from a file, a folder, or a dataset by its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from edge_client.data.columns import spread
from edge_client.data.sources import TABLES, BadRow, CsvSource, Located, Row, Source, json_source
from edge_client.errors import DataError
from server.simulation.data import hub
from server.start.encodings import Readable, readable

LOOKED_AT = 1000
"""Rows whose fields and contents tell the columns."""
_TRAIN, _TEST = ("train",), ("test", "validation", "dev")
_ENDS = ".jsonl", ".ndjson", ".json", *TABLES
_TABLE = ".parquet"
"""Which the library of datasets reads."""


class RowSets(NamedTuple):
    """Rows to learn from, and to measure on where the data came in two parts."""

    train: Source
    test: Source | None = None


class ClassFolders(Source):
    """A folder for each class, with a text file for each example."""

    def __init__(self, folder: Path, classes: Sequence[Path]) -> None:
        self.name = str(folder)
        self._files = [file for one in classes for file in sorted(one.glob("*.txt"))]

    def rows(self) -> Iterator[Located]:
        for at, file in enumerate(self._files):
            place = f"{file.parent.name}/{file.name}"
            try:
                yield Located(place, at, self.row(at))
            except BadRow as error:
                yield Located(place, at, None, str(error))

    def row(self, at: int, /) -> Row:
        file = self._files[at]
        try:
            return {"text": file.read_text("utf-8"), "label": file.parent.name}
        except UnicodeDecodeError as error:
            raise BadRow(f"is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}") from None


def open_rows(data: str) -> RowSets:
    """Open a file, a folder with train.jsonl or with a folder for each class, or a dataset of the hub."""
    path = Path(data)
    if path.is_file():
        return _of_hub(data) if path.suffix.lower() == _TABLE else RowSets(_file(path))
    if path.is_dir():
        train, test = _part(path, _TRAIN), _part(path, _TEST)
        classes = [one for one in sorted(path.iterdir()) if one.is_dir() and next(one.glob("*.txt"), None)]
        if train is not None:
            return RowSets(train, test)
        if len(classes) > 1:
            return RowSets(ClassFolders(path, classes))
    elif path.suffix.lower() in (*_ENDS, _TABLE) or data.startswith((".", "/", "~")):
        raise DataError(f"{data} does not exist; give a .jsonl or .csv file with a row for each example")
    return _of_hub(data)


def _of_hub(data: str) -> RowSets:
    splits = hub.open_splits(data)
    known = hub.columns(splits, data)
    label = next((name for name in ("label", "labels") if name in known), "")
    names = hub.names(splits, label)
    try:
        train, test = hub.labelled(splits, data, label)
    except DataError:  # it has no part to test on: some of its rows will do
        name = data if len(splits) == 1 else f"{data}, train"
        return RowSets(_Named(hub.HubSource(splits["train"], name), label, names))
    return RowSets(_Named(train, label, names), _Named(test, label, names))


class _Named(Source):
    """Rows whose classes are numbers of names."""

    def __init__(self, source: Source, label: str, names: Sequence[str]) -> None:
        self.name = source.name
        self._source, self._label, self._names = source, label, names

    def rows(self) -> Iterator[Located]:
        for located in self._source.rows():
            yield located if located.row is None else located._replace(row=self._named(located.row))

    def row(self, at: int, /) -> Row:
        return self._named(self._source.row(at))

    def _named(self, row: Row) -> Row:
        number = row.get(self._label)
        if isinstance(number, int) and 0 <= number < len(self._names):
            return {**row, self._label: self._names[number]}
        return row


def _part(folder: Path, names: Sequence[str]) -> Source | None:
    paths = (folder / f"{name}{end}" for name in names for end in _ENDS)
    return next((_file(path) for path in paths if path.is_file()), None)


def _file(path: Path) -> Source:
    end = path.suffix.lower()
    if end not in _ENDS:
        raise DataError(
            f"{path} is neither .jsonl, .json, .csv nor .parquet; save it as one of these, with a row for each example"
        )
    known = readable(path)
    source = CsvSource(known.path, known=()) if end in TABLES else json_source(known.path)
    return Recoded(source, path, known) if known.encoding else source


class Recoded(Source):
    """Rows of a file that is not UTF-8."""

    def __init__(self, source: Source, path: Path, known: Readable) -> None:
        self.name, self.encoding = str(path), known.encoding
        self._source, self._known = source, known

    def rows(self) -> Iterator[Located]:
        return self._source.rows()

    def row(self, at: int, /) -> Row:
        return self._source.row(at)


def first_rows(source: Source) -> list[Row]:
    """Read the first rows, which tell what a source has; at least one."""
    first = list(islice(source.rows(), LOOKED_AT))
    rows = [spread(located.row) for located in first if located.row is not None]
    if not rows:
        why = f" ({first[0].place}: {first[0].problem})" if first else ""
        raise DataError(f"{source.name} has no row that can be read{why}; give a row for each example, as UTF-8")
    return rows
