"""The Android library's conversations beside Python's: the same tokens are read, and the same of them learnt."""

import json
import random
import subprocess
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from edge_client.bundle.manifest import FILE_NAME, AdapterSpec, FileSpec, Manifest, ModelSpec, Segment, write
from edge_client.data.batches import Batches
from edge_client.data.conversations import example_of
from edge_client.data.encoder import TextEncoder
from edge_client.data.sequences import sequence_of, taken
from edge_client.data.sources import BadRow
from edge_client.data.templates import Template
from edge_client.data.turns import turns_of
from edge_client.tasks.language import Language
from edge_client.training.epoch import steps_in
from edge_client.wire.protocol import Training
from export.model.loading import template_of
from tests import android, chats, shapes
from tests.edge_client.data.test_turns import TEMPLATES, conversation

LENGTH = 48
FILES = "adapter.safetensors", "tokenizer.json", "tokenizer_config.json"
MANIFEST = Manifest(
    made_by="a test",
    model=ModelSpec("tiny", "none", "causal-lm", (), 2, 420),
    adapter=AdapterSpec("lora", {}, FILES[0]),
    inputs=("input_ids", "attention_mask"),
    units=(),
    head=(),
    segments=(Segment("embed", 0, 0), Segment("head", 0, 0)),
    shapes=((1, LENGTH),),
    directions=(1,),
    tokenizer=FILES[1],
    chat_template=FILES[2],
    pad_token_id=2,
    runtimes={},
    verification=(),
    files=tuple(FileSpec(name, "", 0) for name in FILES),
)
"""A bundle without programs."""


def bundle(folder: Path, template: Template, rows: list[dict]) -> Path:
    folder.mkdir()
    (folder / FILE_NAME).write_bytes(write(msgspec.structs.replace(MANIFEST, turns=turns_of(template))))
    (folder / FILES[1]).write_text(chats.trained().to_str())
    (folder / FILES[2]).write_bytes(template.written())
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def read(classes: str, *folders: Path) -> list[dict]:
    """Return what the library makes of their rows, one after the other."""
    command = android.java(classes, "dev.spry.core.data.ConversationsMain", LENGTH, *folders)
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return android.said(done.stdout)


def rows_for(name: str, rng: random.Random) -> list[dict]:
    said = [conversation(rng, name) for _ in range(25)]
    rows: list[dict] = [{"messages": messages} for messages in said]
    rows += [{"messages": json.dumps(messages), "text": "not this"} for messages in said[:2]]
    rows += [{"messages": [*messages, {"role": "user", "content": "more"}]} for messages in said[:2]]
    rows += [{"prompt": chats.words(rng, 40), "completion": chats.words(rng)} for _ in range(8)]
    rows += [{"prompt": "the tea is", "completion": " hot" * 80}, {"prompt": "ok. " * 80, "completion": "42"}]
    rows += [row for row, *_ in (*shapes.instructions(rng, 10), *shapes.pairs(rng, 10))]
    rows += [row for row, _ in shapes.talks(rng, 10, system=False)]
    return [*rows, {"text": chats.words(rng, 60)}, {"text": "the tea", "prompt": "alone"}]


def test_the_same_tokens_are_learnt(classes, tmp_path):
    rng = random.Random()
    templates = {name: template_of(chats.tokenizer(source)) for name, source in TEMPLATES.items()}
    rows = {name: rows_for(name, rng) for name in TEMPLATES}
    found = iter(read(classes, *(bundle(tmp_path / name, templates[name], rows[name]) for name in TEMPLATES)))
    encoder = TextEncoder(chats.trained(), MANIFEST, 1, LENGTH)
    cut = 0
    for name, template in templates.items():
        for row in rows[name]:
            expected = sequence_of(example_of(row, template), encoder)
            assert next(found) == expected._asdict(), (name, row)
            cut += len(expected.ids) == LENGTH
    assert next(found, None) is None
    assert cut > 50


def test_questions_are_prompts_where_there_is_no_template(classes, tmp_path):
    rng = random.Random()
    rows = [row for row, *_ in (*shapes.instructions(rng, 20), *shapes.pairs(rng, 20))]
    template = template_of(chats.tokenizer(None))
    found = read(classes, bundle(tmp_path / "bundle", template, rows))
    encoder = TextEncoder(chats.trained(), MANIFEST, 1, LENGTH)
    for row, one in zip(rows, found, strict=True):
        assert one == sequence_of(example_of(row, template), encoder)._asdict(), row


def short_rows(rng: random.Random) -> list[dict]:
    rows = [
        {"prompt": chats.words(rng, 8), "completion": chats.words(rng, 4)} if rng.random() < 0.5 else
        {"text": chats.words(rng, rng.randint(1, 9))} for _ in range(60)
    ]  # fmt: skip
    return [*rows, {"text": chats.words(rng, 90)}, {"prompt": "ok. " * 80, "completion": "42"}]


@pytest.mark.parametrize("pack", [True, False])
def test_the_same_batches_are_packed(classes, tmp_path, pack):
    rng = random.Random()
    training = Training(batch=4, length=LENGTH, epochs=2, pack=pack)
    template = template_of(chats.tokenizer(chats.PLAIN["chatml"]))
    rows, seed = short_rows(rng), rng.getrandbits(31)
    folder = bundle(tmp_path / "bundle", template, rows)
    command = android.java(classes, "dev.spry.core.training.PackingMain", folder, seed, json.dumps(asdict(training)))
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    encoder = TextEncoder(chats.trained(), MANIFEST, training.batch, training.length)
    examples = [example_of(row, template) for row in rows]
    batches = Batches(taken(examples, encoder, training), encoder, Language().encode, seed)
    found = android.said(done.stdout)
    assert len(found) == steps_in(training, len(batches))
    for step, one in enumerate(found):
        expected = batches.at(step)
        assert (one["number"], one["examples"]) == (expected.number, expected.examples)
        assert one["input_ids"] == expected.tokens["input_ids"].ravel().tolist()
        assert one["attention_mask"] == expected.tokens["attention_mask"].ravel().tolist()
        assert one["labels"] == expected.labels.ravel().tolist()
    assert (len(batches) < len(rows) / training.batch / 1.5) == pack


def turn(role: str, content: object = "tea", **more: object) -> dict:
    return {"role": role, "content": content, **more}


REFUSED_BY_BOTH = [
    ({"messages": [turn("user")]}, "no message of the role 'assistant': there is nothing to learn"),
    ({"messages": []}, "messages must look like"),
    ({"messages": "[{"}, "messages is not JSON"),
    ({"messages": [turn("user", 7), turn("assistant")]}, "message 1 must have a content that is a text"),
    ({"messages": [turn("user"), {"role": "assistant"}]}, "message 2 must have a content that is a text, got none"),
    ({"prompt": "tea"}, "has one of prompt and completion: both belong together"),
    ({"prompt": " ", "completion": "hot"}, "prompt is empty"),
    ({"instruction": "tea", "response": None}, "has one of instruction and response: both belong together"),
    ({"question": "tea", "answer": "hot", "context": "hot tea"}, "has no text; its fields are"),
    ({"instruction": "tea", "input": 7, "output": "hot"}, "input must be a text"),
    ({"conversations": [{"from": "human"}]}, "message 1 must have a value that is a text, got none"),
    ({"conversation": "[{"}, "conversation is not JSON"),
    (
        {"messages": [{"from": "Human", "value": "tea"}, {"from": "tool", "value": "hot"}]},
        "message 2 is from 'tool', known are human, user, gpt, assistant, chatgpt, bot, model, system",
    ),
]


def test_rows_that_python_refuses_are_refused_alike(classes, tmp_path):
    template = template_of(chats.tokenizer(chats.PLAIN["gemma"]))
    found = read(classes, bundle(tmp_path / "bundle", template, [row for row, _ in REFUSED_BY_BOTH]))
    for (row, why), one in zip(REFUSED_BY_BOTH, found, strict=True):
        assert why in one["refused"]
        with pytest.raises(BadRow, match=why):
            example_of(row, template)


REFUSED = [
    (
        "gemma",
        [turn("system"), turn("user"), turn("assistant")],
        "message 1: 'system' behind the beginning is more",
    ),
    ("gemma", [turn("user"), turn("user"), turn("assistant")], "message 2: 'user' behind 'user' is more than"),
    ("chatml", [turn("user"), turn("assistant"), turn("tool")], "message 3: 'tool' behind 'assistant' is more than"),
    ("chatml", [turn("user"), turn("assistant", name="x")], "message 2 has name beside its role"),
    ("thinking", [turn("user"), turn("assistant")], "does more than put words around messages"),
    ("none", [turn("user"), turn("assistant")], "has no chat template"),
]


def test_what_is_not_known_of_a_template_is_refused(classes, tmp_path):
    folders = [
        bundle(tmp_path / f"{number}", template_of(chats.tokenizer(chats.PLAIN.get(name))), [{"messages": messages}])
        for number, (name, messages, _) in enumerate(REFUSED)
    ]
    for (_, _, why), one in zip(REFUSED, read(classes, *folders), strict=True):
        assert why in one["refused"]


def test_a_bundle_of_before_is_told_apart(classes, tmp_path):
    template = template_of(chats.tokenizer(chats.PLAIN["chatml"]))
    rows = [{"messages": [turn("user"), turn("assistant")]}, {"prompt": "tea", "completion": "hot"}]
    folder = bundle(tmp_path / "bundle", template, rows)
    manifest = json.loads((folder / FILE_NAME).read_text())
    del manifest["turns"]
    (folder / FILE_NAME).write_text(json.dumps(manifest))
    conversation, completion = read(classes, folder)
    assert "before this app could be told of its chat template: export it again" in conversation["refused"]
    encoder = TextEncoder(chats.trained(), MANIFEST, 1, LENGTH)
    assert completion == sequence_of(example_of(rows[1], template), encoder)._asdict()
