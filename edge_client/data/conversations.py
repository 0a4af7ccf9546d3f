"""Rows of language models, ours and those of other programs, what we know them as, and what of them is learnt.

| a row has | is known as |
|---|---|
| `messages`, `conversations` or `conversation`, of `role` and `content`, or of `from` and `value` | `messages` |
| `prompt`, `completion` | itself |
| `instruction` with `output` or `response`, and perhaps `input` or `context` | a question with its answer |
| `text` | itself |
| `prompt` or `query` with `response`, `prompt` with `output`, `question` with `answer` | a question with its answer |

The first shape that fits counts. A question with its answer is two `messages` where the tokenizer has a chat template,
else `prompt` and `completion` with a blank line between them. Of `messages` each answer of the assistant is learnt with
what ends it, of `prompt` and `completion` the completion and that it ends there, of `text` all.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple, cast

import msgspec

from edge_client.errors import DataError

from .examples import Example, text_of
from .sources import BadRow, Row
from .templates import Message, Template

Form = Literal["messages", "completion", "pair", "text"]


class RowShape(NamedTuple):
    """A row that has all of `fields`."""

    form: Form
    fields: tuple[str, ...]
    beside: tuple[str, ...] = ()
    """The optional fields."""
    never: tuple[str, ...] = ()
    """The fields that make it something else."""

    def is_of(self, names: Collection[str]) -> bool:
        return all(field in names for field in self.fields) and not any(field in names for field in self.never)


_SHAPES = (
    RowShape("messages", ("messages",)),
    RowShape("completion", ("prompt", "completion")),
    RowShape("messages", ("conversations",)),
    RowShape("messages", ("conversation",)),
    RowShape("pair", ("instruction", "output"), beside=("input", "context")),
    RowShape("pair", ("instruction", "response"), beside=("input", "context")),
    RowShape("text", ("text",)),
    RowShape("pair", ("prompt", "response")),
    RowShape("pair", ("prompt", "output")),
    RowShape("pair", ("query", "response")),
    RowShape("pair", ("question", "answer"), never=("context",)),  # an answer within a context is the task qa's
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
"""The roles that a message can be `from`."""
_BETWEEN = "\n\n"


def shape_of(names: Collection[str]) -> RowShape | None:
    """Return the shape of a row with these fields; None where it has none."""
    return next((shape for shape in _SHAPES if shape.is_of(names)), None)


def example_of(row: Row, template: Template) -> Example:
    """Make a language model's example of a row, by the template of the job's tokenizer."""
    known = known_row(row, has_template=bool(template.source))
    if "messages" in known:
        messages = _conversation(known)
        try:
            chat = template.chat(messages)
        except DataError as error:
            raise BadRow(str(error)) from None
        return Example(chat.text, learnt=chat.answers, is_whole=True)
    if "completion" in known:
        prompt, completion = text_of(known, "prompt"), text_of(known, "completion")
        text = f"{prompt}{completion}{template.end}"
        return Example(text, learnt=((len(prompt), len(text)),))
    return Example(text_of(known, "text"))


def require_known(row: Row) -> None:
    """Refuse a row of which no template could make an example."""
    known = known_row(row, has_template=False)
    if "messages" in known:
        _conversation(known)
    else:
        for field in ("prompt", "completion") if "completion" in known else ("text",):
            text_of(known, field)


def known_row(row: Row, *, has_template: bool) -> Row:
    """Return the row as `messages`, `prompt` and `completion`, or `text`; one of no shape as it is."""
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
    """Turn one of `from` and `value` into role and content; others stay as they are."""
    fields = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    if "from" not in fields or "role" in fields:
        return cast("object", value)
    speaker, content = _said(number, fields, "from"), _said(number, fields, "value")
    role = _ROLES.get(speaker.lower())
    if role is None:
        raise BadRow(f"message {number} is from {speaker[:80]!r}, known are {', '.join(_ROLES)}")
    return {"role": role, "content": content}


def _is_there(value: object) -> bool:
    """Tell whether a value is there; blank texts are not."""
    return value is not None and not (isinstance(value, str) and not value.strip())


def _refuse_half(row: Row) -> None:
    """Refuse a row with a part of the fields that belong together, by the shape that it is nearest to."""
    pairs = [shape for shape in _SHAPES if len(shape.fields) > 1 and not any(field in row for field in shape.never)]
    nearest = max(pairs, key=lambda shape: sum(field in row for field in shape.fields))
    if any(field in row for field in nearest.fields):
        raise BadRow(f"has one of {' and '.join(nearest.fields)}: both belong together")


def _conversation(known: Row) -> list[Message]:
    messages = cast("list[Any]", known["messages"])
    return [_checked(number, one) for number, one in enumerate(messages, start=1)]


def _checked(number: int, value: Any) -> Message:
    """Check that a message has a role, and a content or calls of tools."""
    fields = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    for field in ("role", "content"):
        if field == "content" and fields.get(field) is None and fields.get("tool_calls"):
            continue  # an answer that calls tools and says nothing
        if _said(number, fields, field).strip():
            text_of(fields, field)
    return fields


def _said(number: int, fields: dict[str, Any], field: str) -> str:
    text: object = fields.get(field)
    if isinstance(text, str):
        return text
    got = type(text).__name__ if field in fields else "none"
    raise BadRow(f"message {number} must have a {field} that is a text, got {got}")
