"""Read rows of data: from a JSONL, CSV or TSV file, a JSON list, or memory.

A file is read line by line, and a row again by where it starts. A line has a bounded length, and so has a list's value,
so that no file can fill the memory.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from edge_client.errors import DataError

Row = Mapping[str, object]

LONGEST_LINE = 1 << 20
"""Bytes; a model reads a few thousand at most."""
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16
_MARKS = re.compile(rb'["\\{}\[\],]')
"""The marks that divide a list's values, and texts in which no mark does."""
_BETWEEN = ",", ";", "\t"
"""The separators of tables' values; spreadsheets of many countries write the second."""
TABLES = ".csv", ".tsv"
"""The suffixes of files of tables."""


class BadRow(Exception):
    """A row cannot be used, for this reason."""


class UnknownLabel(BadRow):
    """A row's label is none of the job's.

    Args:
        label: what it is.
        known: what the job has.
    """

    def __init__(self, label: object, known: Collection[str]) -> None:
        self.label = str(label)[:80]
        names = ", ".join(known) or "none"
        super().__init__(f"unknown label {self.label!r}; the job's labels are {names} (or 0 to {len(known) - 1})")


class Located(NamedTuple):
    """A row that can be read, or why not."""

    place: str
    """`line 3`, or `row 3` of an iterable."""
    at: int
    row: Row | None
    problem: str = ""


class Source:
    """A source of rows. `rows` reads all of them; `row` one again, by the place that `rows` gave."""

    name = "the data"

    def rows(self) -> Iterator[Located]:
        raise NotImplementedError

    def row(self, at: int, /) -> Row:
        raise NotImplementedError

    def stamp(self) -> object:
        """Another value when the rows may have changed."""
        return None


USUAL = "text", "question", "messages", "prompt", "conversations", "conversation", "instruction", "query"
"""Columns of which rows have one at least, by the names that tasks read."""


def open_data(data: Path | str | Iterable[Row], known: Collection[str] = USUAL) -> Source:
    """Open a table with one of the known columns (by its name's end), JSON lines or a JSON list, or rows in memory."""
    if not isinstance(data, Path | str):
        return RowSource(data)
    path = Path(data)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; give a .jsonl or .csv file with a row for each example")
    return CsvSource(path, known) if path.suffix.lower() in TABLES else json_source(path)


def json_source(path: Path) -> Source:
    """Open a JSON file: a list where it begins with one, JSON lines otherwise."""
    with path.open("rb") as file:
        begins_list = file.read(_CHUNK).removeprefix(_BOM).lstrip().startswith(b"[")
    return ListSource(path) if begins_list else JsonlSource(path)


def count_rows(source: Source, *, refuse: bool = False) -> int:
    """Count the rows that can be read, whatever task they are for; `refuse` ends at the first that cannot."""
    count = 0
    for located in source.rows():
        if located.row is None and refuse:
            raise bad_row(source, located.place, located.problem)
        count += located.row is not None
    return count


def bad_row(source: Source, place: str, problem: str) -> DataError:
    what_to_do = "correct the row, or leave bad rows out (--bad-rows skip)"
    return DataError(f"{source.name}, {place}: {problem}; {what_to_do}")


class RowSource(Source):
    """Rows in memory."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)

    def rows(self) -> Iterator[Located]:
        for at, row in enumerate(self._rows):
            if isinstance(cast("object", row), Mapping):
                yield Located(f"row {at + 1}", at, row)
            else:
                yield Located(f"row {at + 1}", at, None, f"expected a mapping such as a dict, got {type(row).__name__}")

    def row(self, at: int, /) -> Row:
        return self._rows[at]


class FileSource(Source):
    """Rows in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    def stamp(self) -> object:
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


class JsonlSource(FileSource):
    """A JSON object on each line."""

    def rows(self) -> Iterator[Located]:
        with self.path.open("rb") as file:
            number = at = 0
            while line := _line(file):
                number += 1
                if line.strip(b" \t\r\n") not in (b"", _BOM):
                    try:
                        yield Located(f"line {number}", at, _object(line, at))
                    except BadRow as error:
                        yield Located(f"line {number}", at, None, str(error))
                at = file.tell()

    def row(self, at: int, /) -> Row:
        with self.path.open("rb") as file:
            file.seek(at)
            return _object(_line(file), at)


class ListSource(FileSource):
    """A JSON list of objects."""

    def rows(self) -> Iterator[Located]:
        with self.path.open("rb") as file, self.path.open("rb") as values:
            number, end = 0, self.path.stat().st_size
            for at, stop in _spans(file):
                if (value := _value(values, at, stop)).strip():
                    number += 1
                    try:
                        yield Located(f"row {number}", at, _object(value, at))
                    except BadRow as error:
                        yield Located(f"row {number}", at, None, str(error))
                if stop == end:
                    yield Located("the end", at, None, "nothing closes the list: the file may be cut off")

    def row(self, at: int, /) -> Row:
        with self.path.open("rb") as file:
            stop = next((stop for _, stop in _spans(file, at)), at)
            return _object(_value(file, at, stop), at)


class CsvSource(FileSource):
    """Values under a header, with commas between them, semicolons or tabs; a quoted value may go over several lines.

    Args:
        path: the file.
        known: columns of which a header has one at least; any line may be a header when there are none.
    """

    def __init__(self, path: Path, known: Collection[str] = USUAL) -> None:
        super().__init__(path)
        self._known = set(known)
        self._header: list[str] = []
        self._between = _BETWEEN[0]

    def rows(self) -> Iterator[Located]:
        with self.path.open("rb") as file:
            self._between = _between(file)
            lines = _Lines(file)
            reader = csv.reader(lines, delimiter=self._between, strict=True)
            self._header = self._first(reader)
            while True:
                at, number = file.tell(), lines.number + 1
                try:
                    values = next(reader)
                except StopIteration:
                    return
                except (BadRow, csv.Error) as error:
                    unclosed = isinstance(error, csv.Error) and not file.peek(1)
                    why = 'has a " that is never closed: the rest is read as one value' if unclosed else str(error)
                    yield Located(f"line {number}", at, None, why)
                    continue
                if values:
                    yield self._located(f"line {number}", at, values)

    def row(self, at: int, /) -> Row:
        with self.path.open("rb") as file:
            file.seek(at)
            try:
                values = next(csv.reader(_Lines(file), delimiter=self._between, strict=True))
                return self._located("", at, values).row or {}
            except (StopIteration, csv.Error) as error:
                raise BadRow(str(error)) from None

    def _first(self, reader: Iterator[list[str]]) -> list[str]:
        try:
            header = [name.strip() for name in next(reader, list[str]())]
        except (BadRow, csv.Error) as error:
            raise DataError(f"{self.path}, line 1: {error}") from None
        if header and self._known and not self._known & set(header):
            raise DataError(
                f"{self.path}, line 1: expected a header with the columns text and label (or question, context and "
                f"answers), got {', '.join(header)[:200]}; name others with --text and --label"
            )
        return header

    def _located(self, place: str, at: int, values: list[str]) -> Located:
        if len(values) != len(self._header):
            return Located(place, at, None, f"has {len(values)} values, the header {len(self._header)}")
        return Located(place, at, dict(zip(self._header, values, strict=True)))


class _Lines(Iterator[str]):
    """A file's lines as text, counted, for a reader that asks for as many as a row takes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.number = 0

    def __next__(self) -> str:
        start = self.file.tell()
        line = _line(self.file)
        if not line:
            raise StopIteration
        self.number += 1
        return _text(line, start)


def _between(file: BinaryIO) -> str:
    """Choose the separator that the header has most of; a comma where it has none."""
    header = re.sub(rb'"[^"]*"', b"", _line(file))
    file.seek(0)
    return max(_BETWEEN, key=lambda one: header.count(one.encode()))


def _line(file: BinaryIO) -> bytes:
    """Read the next line; of one that is too long a part that shows it, and the rest is passed over."""
    line = file.readline(LONGEST_LINE + 1)
    last = line
    while len(last) == LONGEST_LINE + 1 and not last.endswith(b"\n"):
        last = file.readline(LONGEST_LINE + 1)
    return line


def _spans(file: BinaryIO, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where each value begins, and ends: of the whole file, or from where a value of its list begins.

    Only marks outside of texts are looked at; whether a value is JSON is for who reads it.
    """
    depth, begun = int(start > 0), start
    for at, mark in _marks(file, start):
        ends = depth == 1 and mark in b",]}"
        if ends:
            yield begun, at
        depth += (mark in b"[{") - (mark in b"]}")
        if ends or (depth == 1 and mark == b"["):
            begun = at + 1
    if depth > 0:
        yield begun, file.tell()


def _marks(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Find the marks that open, close or divide, where they stand in no text."""
    file.seek(start)
    quoted, escaped, offset = False, -1, start
    while chunk := file.read(_CHUNK):
        for found in _MARKS.finditer(chunk):
            at, mark = offset + found.start(), found[0]
            if at == escaped:
                continue
            if mark == b"\\":
                escaped = at + 1
            elif mark == b'"':
                quoted = not quoted
            elif not quoted:
                yield at, mark
        offset += len(chunk)


def _value(file: BinaryIO, at: int, stop: int) -> bytes:
    """Read the value that stands there; of one that is too long a part that shows it."""
    file.seek(at)
    return file.read(min(stop - at, LONGEST_LINE + 1))


def _text(line: bytes, at: int) -> str:
    if len(line) > LONGEST_LINE:
        raise BadRow(f"is longer than {LONGEST_LINE:,} bytes")
    try:
        return line.removeprefix(_BOM if at == 0 else b"").decode()
    except UnicodeDecodeError as error:
        raise BadRow(f"is not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}") from None


def _object(line: bytes, at: int) -> Row:
    try:
        value = msgspec.json.decode(_text(line, at))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRow(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRow(f'expected an object such as {{"text": ..., "label": ...}}, got {type(value).__name__}')
    return cast("Row", value)
