"""Rows of other programs: what is learnt of them is what the same rows of ours teach."""

import csv
import json
import random

import pytest

from edge_client.bundle.manifest import ModelSpec
from edge_client.data.conversations import example_of, shape_of
from edge_client.data.examples import examples_for
from edge_client.data.local import OwnData
from edge_client.data.sources import BadRow, open_data
from edge_client.data.templates import Template
from edge_client.errors import DataError
from edge_client.tasks.registry import TASK_TYPES
from export.model.loading import template_of
from tests import chats
from tests.shapes import SPEAKERS, instructions, pairs, talks

CHATML = template_of(chats.tokenizer(chats.PLAIN["chatml"]))
LANGUAGE = TASK_TYPES["causal-lm"]


@pytest.mark.parametrize("template", [CHATML, Template(tokens={"eos_token": "</s>"})], ids=["template", "none"])
def test_questions_with_their_answers_are_learnt_as_ours(template):
    rng = random.Random()
    for row, asked, answer in [*instructions(rng, 60), *pairs(rng, 60)]:
        said = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        ours = {"messages": said} if template.source else {"prompt": f"{asked}\n\n", "completion": answer}
        assert example_of(row, template) == example_of(ours, template), row


def test_conversations_of_other_programs_are_learnt_as_ours():
    rng = random.Random()
    for row, messages in talks(rng, 100):
        assert example_of(row, CHATML) == example_of({"messages": messages}, CHATML), row


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (("text", "messages"), ("messages",)),
        (("text", "completion", "prompt", "response"), ("prompt", "completion")),
        (("text", "instruction", "input", "output"), ("instruction", "output")),
        (("instruction", "context", "response", "category"), ("instruction", "response")),
        (("text", "question", "answer"), ("text",)),
        (("id", "question", "answer", ""), ("question", "answer")),
        (("question", "answer", "context"), None),
        (("prompt", "label"), None),
        (("input", "output"), None),
    ],
)
def test_the_first_shape_that_fits_counts(names, fields):
    shape = shape_of(names)
    assert (shape and shape.fields) == fields


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"instruction": "a"}, "has one of instruction and output: both belong together"),
        ({"instruction": "a", "response": None}, "has one of instruction and response"),
        ({"question": "a", "answer": "b", "context": "b c"}, "has no text"),
        ({"instruction": "a", "output": " "}, "output is empty"),
        ({"instruction": "a", "output": 7}, "output must be a text, got int"),
        ({"instruction": "a", "input": ["b"], "output": "c"}, "input must be a text, got list"),
        ({"conversations": "hello"}, "conversations is not JSON"),
        ({"conversation": []}, "conversation must look like"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "nothing to learn"),
        ({"conversations": [{"from": "human"}]}, "message 1 must have a value that is a text, got none"),
        ({"messages": [{"from": None, "value": "a"}]}, "message 1 must have a from that is a text, got NoneType"),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "observation", "value": "b"}]},
            "message 2 is from 'observation', known are human, user, gpt",
        ),
    ],
)
def test_rows_that_are_none(row, why):
    with pytest.raises(BadRow, match=why):
        example_of(row, CHATML)


def test_roles_that_are_unknown_are_told_with_their_row(tmp_path):
    row, _ = next(talks(random.Random(), 1))
    called = {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "f()"}]}
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(called)}\n")
    with pytest.raises(DataError) as told:
        examples_for(open_data(path), LANGUAGE.check((), CHATML))
    assert f"{path}, line 2: message 2 is from 'function_call'" in str(told.value)
    assert all(name in str(told.value) for name in SPEAKERS)
    assert "\n" not in str(told.value)


# --- a device's own data ---------------------------------------------------------------------------------------------


def learnt(data) -> list:
    own = OwnData(data, holdout=0.0)
    own.count()
    model = ModelSpec("any", "any", "causal-lm", (), blocks=1, parameters=1)
    check = LANGUAGE.check((), CHATML)
    return list(own.fitting(model, LANGUAGE.fields, check, CHATML, converses=LANGUAGE.converses)[0])


def test_a_device_reads_them_from_lines_lists_and_tables(tmp_path):
    rng = random.Random()
    rows = [{"id": n, "input": "", **row} for n, (row, *_) in enumerate(instructions(rng, 40, "output"))]
    expected = [example_of(row, CHATML) for row in rows]
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["instruction", "output", "input", "context", "id"])
        writer.writeheader()
        writer.writerows(rows)
    assert learnt(lines) == learnt(table) == learnt(rows) == expected
    for indent in (None, 1):
        (tmp_path / "rows.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=False))
        assert learnt(tmp_path / "rows.json") == expected


def test_a_device_reads_conversations_from_lists_and_tables(tmp_path):
    rng = random.Random()
    rows = [row for row, _ in talks(rng, 30, "conversations", as_json=False)]
    expected = [example_of(row, CHATML) for row in rows]
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=2))
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "conversations"])
        writer.writerows((number, json.dumps(row["conversations"])) for number, row in enumerate(rows))
    assert learnt(tmp_path / "rows.json") == learnt(tmp_path / "rows.csv") == expected
