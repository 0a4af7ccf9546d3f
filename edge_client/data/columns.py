"""Which columns of a data set hold what: as it was asked for, or by the names that data sets commonly have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, cast

from edge_client.errors import DataError

from .conversations import shape_of
from .sources import USUAL, Located, Row, Source

Fields = dict[str, tuple[str, ...]]
"""The columns that each field of a device's rows is made of."""

LABEL = "label"
"""The field of an example's own class."""
GROUP = "group"
"""The field of what is split over, where that is not the label."""

_TEXTS = (
    ("text", "text_pair"),  # the second may be missing: these are the names that a device reads
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("paragraph", "question+answer"),
    ("passage", "question"),
    ("question", "sentence"),
    ("question_title+question_content+best_answer", ""),
    ("title+content", ""),
    ("sentence", ""),
    ("content", ""),
    ("review", ""),
)
LABELS = ("label", "labels", "class", "category", "topic", "intent", "coarse_label")
"""The common names of columns of classes."""
_FIRST = 100
"""Rows whose fields tell the columns."""


class Columns(NamedTuple):
    """The columns that were asked for; several are joined with +, an empty one is looked for."""

    text: str = ""
    """Or the question."""
    pair: str = ""
    """Or the question's context."""
    label: str = ""
    """Or the question's answers."""


def fields_of(
    wanted: Sequence[str], asked: Columns, names: Sequence[str], where: str, *, converses: bool = False
) -> Fields:
    """Find each field that a kind of task reads among a data set's columns; `converses`: as conversations."""
    shape = shape_of(names) if converses and not asked.text else None
    if shape is not None and shape.form != "text":
        return {field: (field,) for field in (*shape.fields, *shape.beside) if field in names}
    taken = _texts(asked, names, where) if "text" in wanted else {}
    if LABEL in wanted:
        taken[LABEL] = asked.label or next((name for name in LABELS if name in names), LABEL)
    taken |= {name: given or name for name, given in zip(wanted, asked, strict=True) if name and name not in taken}
    fields = {field: tuple(columns.split("+")) for field, columns in taken.items() if columns}
    for field, columns in fields.items():
        for column in columns:
            if column not in names and (field, column) != ("text_pair", "text_pair"):
                raise DataError(f"{where} has no column {column!r} for the {field}; {_known(names)}")
    return fields


def known_names(asked: Columns) -> set[str]:
    """List the columns that a device's rows may have their texts in."""
    usual = {name for first, _ in _TEXTS for name in first.split("+")}
    return {*USUAL, *usual} | {name for columns in asked for name in columns.split("+") if name}


def for_device(source: Source, wanted: Sequence[str], asked: Columns, *, converses: bool) -> Source:
    """Rename a device's rows to what its task reads; they stay as they are with these names or no usual ones."""
    names = names_in(source)
    if not any(asked) and all(name in names for name in (wanted[0], LABEL) if name in wanted):
        return source
    try:
        return MappedSource(source, fields_of(wanted, asked, names, source.name, converses=converses))
    except DataError:
        if any(asked):
            raise
        return source  # a row's missing fields are reported with its place


def names_in(source: Source) -> Sequence[str]:
    """Return the columns of the first rows, with those of objects within them."""
    rows = (spread(located.row) for located in source.rows() if located.row is not None)
    return list(dict.fromkeys(str(name) for row in islice(rows, _FIRST) for name in row))


def spread(row: Row) -> Row:
    """Add the fields of objects within a row to it, as `ticket.text`."""
    objects = [(name, cast("dict[str, object]", one)) for name, one in row.items() if isinstance(one, dict)]
    inner = {f"{name}.{key}": value for name, one in objects for key, value in one.items()}
    return {**row, **spread(inner)} if inner else row


def _texts(asked: Columns, names: Sequence[str], where: str) -> dict[str, str]:
    text, pair = asked.text, asked.pair
    if not text:
        known = ((first, second) for first, second in _TEXTS if _there(first, names) and _there(second, names))
        text, second = next(known, ("", ""))
        pair = pair or second
    if not text:
        raise DataError(f"{where} has no column of a name that texts commonly have; {_known(names)}")
    return {"text": text, "text_pair": pair}


def _there(columns: str, names: Sequence[str]) -> bool:
    return columns in ("", "text_pair") or set(columns.split("+")) <= set(names)


def _known(names: Sequence[str]) -> str:
    return f"its columns are {', '.join(names)[:200] or 'none'}: say which to take (--text, --pair, --label)"


class MappedSource(Source):
    """Rows by the names that a device reads."""

    def __init__(self, source: Source, fields: Fields) -> None:
        self.name = source.name
        self._source = source
        self._fields = fields

    def rows(self) -> Iterator[Located]:
        for located in self._source.rows():
            yield located if located.row is None else located._replace(row=self._mapped(located.row))

    def row(self, at: int, /) -> Row:
        return self._mapped(self._source.row(at))

    def stamp(self) -> object:
        return self._source.stamp()

    def _mapped(self, row: Row) -> Row:
        row = spread(row)
        return {field: _value(row, columns) for field, columns in self._fields.items() if columns[0] in row}


def _value(row: Row, columns: tuple[str, ...]) -> object:
    if len(columns) == 1:
        return row[columns[0]]
    return " ".join(str(row[column]) for column in columns if row.get(column) not in (None, ""))
