"""Random rows as other programs write them for language models, and what they mean."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests import chats

SPEAKERS = {
    "user": ("human", "user", "Human"),
    "assistant": ("gpt", "assistant", "chatgpt", "bot", "model", "GPT"),
    "system": ("system",),
}
"""Who a message is from, for each role."""
_PAIRS = ("prompt", "response"), ("prompt", "output"), ("query", "response"), ("question", "answer")


def instructions(rng: random.Random, count: int, *answers: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Rows, what is asked in each, and the answer; that is in one of the fields named."""
    for _ in range(count):
        asked, more, answer = (chats.words(rng) for _ in range(3))
        row: dict[str, Any] = {"instruction": asked, rng.choice(answers or ("output", "response")): answer}
        given = rng.choice([None, "input", "context"])
        if given:
            row[given] = rng.choice([more, more, "", " \n"])
            asked = f"{asked}\n\n{row[given]}" if row[given].strip() else asked
        yield row, asked, answer


def pairs(rng: random.Random, count: int) -> Iterator[tuple[dict[str, Any], str, str]]:
    for _ in range(count):
        asked, answer = chats.words(rng), chats.words(rng)
        yield dict(zip(rng.choice(_PAIRS), (asked, answer), strict=True)) | {"id": rng.random()}, asked, answer


def talks(
    rng: random.Random, count: int, *fields: str, system: bool = True, as_json: bool = True
) -> Iterator[tuple[dict[str, Any], list[dict[str, str]]]]:
    """Rows of conversations, and the messages of each by role and content; some have theirs as JSON."""
    for _ in range(count):
        messages = chats.conversation(rng, turns=rng.randint(1, 3), system=system and rng.random() < 0.5)
        said: Any = [{"from": rng.choice(SPEAKERS[one["role"]]), "value": one["content"]} for one in messages]
        if rng.random() < 0.2:
            said = messages
        field = rng.choice(fields or ("conversations", "conversation", "messages"))
        yield {field: json.dumps(said) if as_json and rng.random() < 0.2 else said}, messages


def talk(messages: list[dict[str, str]]) -> dict[str, Any]:
    """A conversation as ShareGPT has it."""
    said = [{"from": SPEAKERS[one["role"]][0], "value": one["content"]} for one in messages]
    return {"conversations": said}


def instruction(messages: list[dict[str, str]]) -> dict[str, Any]:
    """A question and its answer as Alpaca has them."""
    asked, answered = messages
    return {"instruction": asked["content"], "input": "", "output": answered["content"]}
