"""Modelfiles, and chat templates taken apart for them."""

import random
import re

import pytest

from edge_client.data.templates import Template
from server.formats.ollama import modelfile
from server.formats.turns import turns_of
from tests import chats

TOKENS = {"bos_token": chats.BEGIN, "eos_token": chats.END}
ALIKE = {"chatml": ("system", "user", "assistant"), "gemma": ("user", "assistant")}
"""Templates that put words around each message, and the roles that they take."""
WORDS = ("tea", "is hot", "{% raw %}", "日本語", "don't", "a\nb")


def conversation(roles: tuple[str, ...]) -> list[dict]:
    system = (
        [{"role": "system", "content": random.choice(WORDS)}] if "system" in roles and random.random() < 0.5 else []
    )
    turns = [{"role": role, "content": random.choice(WORDS)} for _ in range(4) for role in ("user", "assistant")]
    return [*system, *turns[: random.choice((1, 3, 5, 7))]]


@pytest.mark.parametrize("name", ALIKE)
def test_turns_write_what_the_template_writes(name):
    template = Template(chats.PLAIN[name], TOKENS)
    turns = turns_of(template)
    assert tuple(turns.roles) == ALIKE[name]
    for _ in range(20):
        messages = conversation(ALIKE[name])
        assert template.render(messages, add_generation_prompt=True) == chats.BEGIN * (name == "gemma") + turns.written(
            messages
        )


@pytest.mark.parametrize("name", sorted(chats.PLAIN.keys() - ALIKE))
def test_a_template_that_does_more_is_left_to_the_base(name):
    """Thoughts of the last answer alone, today's date, a system prompt within the user's first turn."""
    template = Template(chats.PLAIN[name], TOKENS)
    if (turns := turns_of(template)) is None:
        assert "TEMPLATE" not in modelfile("base.gguf", "adapter.gguf", template, base="x")
        return
    for _ in range(20):  # or it is right all the same
        messages = conversation(tuple(turns.roles))
        assert template.render(messages, add_generation_prompt=True).removeprefix(chats.BEGIN) == turns.written(
            messages
        )


def in_go(text: str, messages: list[dict]) -> str:
    """Render the few words of Go's `text/template` that a Modelfile uses."""
    lead, body, asking = re.fullmatch(
        r"(.*?)\{\{ range \.Messages \}\}(.*)\{\{ end \}\}\{\{ end \}\}(.*)", text, re.DOTALL
    ).groups()
    branches = re.split(r"\{\{ (?:else )?if eq \.Role \"(\w+)\" \}\}", body)[1:]
    roles = dict(zip(branches[::2], branches[1::2], strict=True))
    return lead + "".join(roles[m["role"]].replace("{{ .Content }}", m["content"]) for m in messages) + asking


@pytest.mark.parametrize("name", ALIKE)
def test_a_modelfile_has_the_template_in_ollamas_language(name):
    template = Template(chats.PLAIN[name], TOKENS)
    text = modelfile("./base.gguf", "./adapter.gguf", template, base="tiny")
    assert text.splitlines()[:3] == [
        "# ollama create NAME -f Modelfile; the base is tiny", "FROM ./base.gguf", "ADAPTER ./adapter.gguf",
    ]  # fmt: skip
    written = re.search(r'^TEMPLATE """(.*?)"""$', text, re.DOTALL | re.MULTILINE)[1]
    messages = conversation(ALIKE[name])
    assert in_go(written, messages) == turns_of(template).written(messages)
    stop = re.search(r'^PARAMETER stop "(.*)"$', text, re.MULTILINE)[1]
    assert stop in ("<|im_end|>", "<end_of_turn>")


def test_a_model_without_a_template_has_a_modelfile_too():
    assert modelfile(".", None, Template(), base="x").splitlines()[1:] == ["FROM ."]
