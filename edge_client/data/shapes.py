"""The shapes that rows of language models have, ours and those of other programs, and what we know them as.

| a row has | is read as |
|---|---|
| `messages`, `conversations` or `conversation`, of `role` and `content`, or of `from` and `value` | `messages` |
| `prompt`, `completion` | itself |
| `instruction` with `output` or `response`, and perhaps `input` or `context` | a question with its answer |
| `text` | itself |
| `prompt` or `query` with `response`, `prompt` with `output`, `question` with `answer` | a question with its answer |

A question with its answer is two `messages` where the tokenizer has a chat template, else `prompt` and `completion`
with a blank line between them. The first shape that fits counts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple, cast

import msgspec

from .examples import text_of
from .sources import BadRow, Row

Form = Literal["messages", "completion", "pair", "text"]


class Shape(NamedTuple):
    """A row that has all of `fields`."""

    form: Form
    fields: tuple[str, ...]
    beside: tuple[str, ...] = ()
    """What may be asked too."""
    never: tuple[str, ...] = ()
    """What makes it something else."""

    def is_of(self, names: Collection[str]) -> bool:
        return all(field in names for field in self.fields) and not any(field in names for field in self.never)


_SHAPES = (
    Shape("messages", ("messages",)),
    Shape("completion", ("prompt", "completion")),
    Shape("messages", ("conversations",)),
    Shape("messages", ("conversation",)),
    Shape("pair", ("instruction", "output"), beside=("input", "context")),
    Shape("pair", ("instruction", "response"), beside=("input", "context")),
    Shape("text", ("text",)),
    Shape("pair", ("prompt", "response")),
    Shape("pair", ("prompt", "output")),
    Shape("pair", ("query", "response")),
    Shape("pair", ("question", "answer"), never=("context",)),  # an answer within a context is the task qa's
)
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
}
"""Who a message can be `from`."""
_BETWEEN = "\n\n"


def shape_of(names: Collection[str]) -> Shape | None:
    """The shape of a row with these fields; None where it has none."""
    return next((shape for shape in _SHAPES if shape.is_of(names)), None)


def known_row(row: Row, *, has_template: bool) -> Row:
    """The row as `messages`, `prompt` and `completion`, or `text`; one of no shape as it is."""
    given = {name: value for name, value in row.items() if value is not None}
    shape = shape_of(given)
    if shape is None:
        _refuse_half(row)
        return given
    if shape.form == "messages":
        return {"messages": _messages(row[shape.fields[0]], shape.fields[0])}
    if shape.form != "pair":
        return {field: row[field] for field in shape.fields}
    first, last = shape.fields
    parts = [text_of(row, first), *(text_of(row, field) for field in shape.beside if _is_there(row.get(field)))]
    asked, answer = _BETWEEN.join(parts), text_of(row, last)
    if has_template:
        return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
    return {"prompt": asked + _BETWEEN, "completion": answer}


def _listed(value: object, field: str) -> list[Any]:
    """Messages, which a table has as JSON."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadRow(f"{field} is not JSON: {error}") from None
    if not isinstance(value, list) or not value:
        shown = str(cast("object", value))[:80]
        raise BadRow(f'{field} must look like [{{"role": "user", "content": "..."}}], got {shown!r}')
    return cast("list[Any]", value)


def _messages(value: object, field: str) -> list[Any]:
    return [_message(number, one) for number, one in enumerate(_listed(value, field), start=1)]


def _message(number: int, value: Any) -> Any:
    """One of `from` and `value` by role and content; others as they are."""
    fields = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    if "from" not in fields or "role" in fields:
        return cast("object", value)
    for field in ("from", "value"):
        if not isinstance(fields.get(field), str):
            got = type(fields[field]).__name__ if field in fields else "none"
            raise BadRow(f"message {number} must have a {field} that is a text, got {got}")
    role = _ROLES.get(fields["from"].lower())
    if role is None:
        raise BadRow(f"message {number} is from {fields['from'][:80]!r}, and known are {', '.join(_ROLES)} alone")
    return {"role": role, "content": fields["value"]}


def _is_there(value: object) -> bool:
    """Not of texts that say nothing."""
    return value is not None and not (isinstance(value, str) and not value.strip())


def _refuse_half(row: Row) -> None:
    """A row with a part of what belongs together is told so, by the shape that it is nearest to."""
    pairs = [shape for shape in _SHAPES if len(shape.fields) > 1 and not any(field in row for field in shape.never)]
    nearest = max(pairs, key=lambda shape: sum(field in row for field in shape.fields))
    if any(field in row for field in nearest.fields):
        raise BadRow(f"has one of {' and '.join(nearest.fields)}: both belong together")
