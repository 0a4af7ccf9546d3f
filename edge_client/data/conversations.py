"""Rows of language models: a text, a prompt with its completion, or a conversation; and what of them is learnt.

| a row has | what is learnt |
|---|---|
| `messages`: [{"role": ..., "content": ...}, ...] | each answer of the assistant, with what ends it |
| `prompt`, `completion` | the completion, and that it ends there |
| `text` | all of it |

Rows of other programs are read as one of these (`shapes`).
"""

from __future__ import annotations

from typing import Any, cast

from edge_client.errors import DataError

from .examples import Example, text_of
from .shapes import known_row
from .sources import BadRow, Row
from .templates import Message, Template


def example_of(row: Row, template: Template) -> Example:
    """What a language model learns of a row; the template is of the job's tokenizer."""
    known = known_row(row, has_template=bool(template.source))
    if "messages" in known:
        messages = cast("list[Any]", known["messages"])
        try:
            chat = template.chat([_message(number, one) for number, one in enumerate(messages, start=1)])
        except DataError as error:
            raise BadRow(str(error)) from None
        return Example(chat.text, learnt=chat.answers, is_whole=True)
    if "completion" in known:
        prompt, completion = text_of(known, "prompt"), text_of(known, "completion")
        text = f"{prompt}{completion}{template.end}"
        return Example(text, learnt=((len(prompt), len(text)),))
    return Example(text_of(known, "text"))


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
