"""Rows of language models: a text, a prompt with its completion, or a conversation; and what of them is learnt.

| a row has | what is learnt |
|---|---|
| `messages`: [{"role": ..., "content": ...}, ...] | each answer of the assistant, with what ends it |
| `prompt`, `completion` | the completion, and that it ends there |
| `text` | all of it |
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, cast

import msgspec

from edge_client.errors import DataError

from .examples import Example, text_of
from .sources import BadRow, Row
from .templates import Message, Template

Form = Literal["messages", "completion", "text"]

FIELDS: dict[Form, tuple[str, ...]] = {
    "messages": ("messages",),
    "completion": ("prompt", "completion"),
    "text": ("text",),
}
"""What a row of each form has; the first that fits counts."""


def form_of(names: Collection[str]) -> Form | None:
    """The form of a row with these fields; None where it has none."""
    return next((form for form, fields in FIELDS.items() if all(field in names for field in fields)), None)


def example_of(row: Row, template: Template) -> Example:
    """What a language model learns of a row; the template is of the job's tokenizer."""
    form = form_of([name for name, value in row.items() if value is not None])
    try:
        if form == "messages":
            chat = template.chat(_messages(row["messages"]))
            return Example(chat.text, learnt=chat.answers, is_whole=True)
    except DataError as error:
        raise BadRow(str(error)) from None
    if form == "completion":
        prompt, completion = text_of(row, "prompt"), text_of(row, "completion")
        text = f"{prompt}{completion}{template.end}"
        return Example(text, learnt=((len(prompt), len(text)),))
    if form is None and ("prompt" in row or "completion" in row):
        raise BadRow("has one of prompt and completion: both belong together")
    return Example(text_of(row, "text"))


def _messages(value: Any) -> list[Message]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadRow(f"messages is not JSON: {error}") from None
    if not isinstance(value, list) or not value:
        shown = str(cast("object", value))[:80]
        raise BadRow(f'messages must look like [{{"role": "user", "content": "..."}}], got {shown!r}')
    return [_message(number, one) for number, one in enumerate(cast("list[Any]", value), start=1)]


def _message(number: int, value: Any) -> Message:
    fields = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    for field in ("role", "content"):
        text: object = fields.get(field)
        if field == "content" and text is None and fields.get("tool_calls"):
            continue  # an answer that calls tools and says nothing
        if not isinstance(text, str):
            got = type(text).__name__ if field in fields else "none"
            raise BadRow(f"message {number} must have a {field} that is a text, got {got}")
        if text.strip():
            text_of(fields, field)
    return fields
