"""Which columns hold what in somebody's data: by their names where these are common, else by their contents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from edge_client.data.columns import LABEL, LABELS, Columns, Fields, fields_of
from edge_client.data.conversations import RowShape, shape_of
from edge_client.data.sources import Row
from edge_client.errors import DataError
from edge_client.tasks.registry import task_named

_MOST_CLASSES = 0.2
"""The most different values of a column of classes, as a share of its rows."""
_LONGEST_CLASS = 60
_FEWEST_WORDS = 2.0
"""The fewest words of a text, as a mean; a column of names or numbers has fewer."""
_SENTENCE = 6.0
"""Words of answers, as a mean, that no class has: rows that ask one thing in several ways repeat their answers."""
_MOST = 0.9
"""The share of rows that must have their shape's fields; a few may lack them."""
_SURE = "conversations", "conversation", "instruction"
"""Columns of language models' rows alone, whatever their contents."""


class Found(NamedTuple):
    """The columns of texts and labels that were found."""

    task: str
    fields: Fields
    guessed: bool
    """True if contents decided, where names did not."""
    others: dict[str, int] = {}  # noqa: RUF012 -- nobody changes it
    """Further columns that could be the classes, and how many values each has."""


def columns_in(rows: Sequence[Row], asked: Columns, task: str | None, where: str) -> Found:
    """Find what can be learned from rows, and from which of their columns."""
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    asked_for, task = task, task or _task(names, asked)
    kind = task_named(task)
    if LABEL not in kind.fields:
        fields = fields_of(kind.fields, asked, names, where, converses=kind.converses)
        return Found(task, fields, guessed=False)
    try:
        fields = fields_of(task_named(task).fields, asked, names, where)
        return Found(task, fields, guessed=False)
    except DataError:
        if any(name and part not in names for name in asked for part in name.split("+")):
            raise
    if asked_for is None and not any(asked) and (shape := _told(rows, names)):
        fields = fields_of(task_named("causal-lm").fields, asked, names, where, converses=True)
        return Found("causal-lm", fields, guessed=shape.fields[0] not in _SURE)
    fitting = _fitting(rows, names)
    label = asked.label or _label(fitting)
    text = asked.text or _text(rows, [name for name in names if name != label])
    if not label or not text:
        lacks = "the texts" if not text else "the classes"
        raise DataError(
            f"{where} has no column that looks like {lacks}: its columns are {', '.join(names)[:200]}; name them with "
            "--text and --label, or say --task causal-lm to learn from the texts alone"
        )
    if any(str(row.get(label)).strip() == label for row in rows):
        raise DataError(
            f"{where} begins with a row ({', '.join(names)[:120]}), where the columns' names should be: put a line of "
            "these above it, such as text,label"
        )
    fields = fields_of(task_named(task).fields, Columns(text, asked.pair, label), names, where)
    others = {} if asked.label else {name: count for name, count in fitting.items() if name not in (label, text)}
    return Found(task, fields, guessed=True, others=others)


def _task(names: Sequence[str], asked: Columns) -> str:
    """Answers to questions where there are some, texts alone where nothing else is, and classes else."""
    if {"question", "context", "answers"} <= set(names):
        return "qa"
    alone = len(names) == 1 and not asked.label
    return "causal-lm" if alone or {"messages"} <= set(names) or {"prompt", "completion"} <= set(names) else "seq-cls"


def _told(rows: Sequence[Row], names: Sequence[str]) -> RowShape | None:
    """Return the shape of other programs' rows for language models; None where they may be for classes."""
    shape = shape_of(names)
    if shape is None or shape.form not in ("messages", "pair"):
        return None
    fits = _is_talk if shape.form == "messages" else _is_text
    if any(sum(fits(row.get(name)) for row in rows) < _MOST * len(rows) for name in shape.fields):
        return None
    if shape.fields[0] in _SURE:
        return shape
    return shape if not set(LABELS) & set(names) and _vary([str(row.get(shape.fields[1])) for row in rows]) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_talk(value: object) -> bool:
    """Messages, which a table has as JSON."""
    return isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith("[{"))


def _vary(answers: Sequence[str]) -> bool:
    """Say whether answers are written and not chosen: whole sentences, or several words that hardly ever come again."""
    words = fmean(len(one.split()) for one in answers)
    return words >= _SENTENCE or (len(set(answers)) > len(answers) / 2 and words >= _FEWEST_WORDS)


def _fitting(rows: Sequence[Row], names: Iterable[str]) -> dict[str, int]:
    """Find the columns of short values that come again and again, and count the different ones."""
    kinds = {name: {str(row[name]).strip() for row in rows if _is_plain(row.get(name))} for name in names}
    return {
        name: len(values)
        for name, values in kinds.items()
        if 2 <= len(values) <= max(2, _MOST_CLASSES * len(rows)) and max(map(len, values)) <= _LONGEST_CLASS
    }


def _label(fitting: Mapping[str, int]) -> str:
    """Choose the column of classes: one whose name has a usual one in it (`Topic/Code`), or that of fewest values."""
    usual = {name: count for name, count in fitting.items() if _words(name) & set(LABELS)}
    return min(usual or fitting, key=fitting.__getitem__, default="")


def _words(name: str) -> set[str]:
    """Split a column's name: `ticketTopic`, `Topic/Code` and `topic_code` all have the word topic."""
    return set(re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))


def _text(rows: Sequence[Row], names: Iterable[str]) -> str:
    """Return the column with the most words."""
    words = {
        name: fmean(len(str(row[name]).split()) if _is_plain(row.get(name)) else 0 for row in rows) for name in names
    }
    longest = max(words, key=words.__getitem__, default="")
    return longest if longest and words[longest] >= _FEWEST_WORDS else ""


def _is_plain(value: object) -> bool:
    """Neither nothing nor made of other values."""
    return value not in (None, "") and not isinstance(value, dict | list)
