"""A device's own data: columns of any name, and what is told before anything is sent."""

import json

import pytest

from edge_client.bundle.manifest import ModelSpec
from edge_client.data.columns import Columns
from edge_client.data.local import OwnData
from edge_client.data.templates import Template
from edge_client.errors import DataError
from edge_client.tasks.registry import TASK_TYPES

NAMES = "no", "yes"
PAIRS = [(f"text {number}", NAMES[number % 2]) for number in range(20)]


@pytest.fixture
def fitting():
    """The examples of some data for a classifier, and what was told of them."""

    def run(data, **options):
        told = []
        own = OwnData(data, holdout=0.0, tell=told.append, **options)
        kind, model = TASK_TYPES["seq-cls"], ModelSpec("any", "any", "seq-cls", NAMES, blocks=1, parameters=1)
        assert own.count() == 20
        examples, _ = own.fitting(model, kind.fields, kind.check(NAMES), Template(), converses=kind.converses)
        return [(one.text, NAMES[one.label]) for one in examples], [event.message for event in told]

    return run


@pytest.mark.parametrize("names", [("text", "label"), ("sentence", "category"), ("review", "intent")])
def test_usual_columns_are_recognised(fitting, names, tmp_path):
    rows = [dict(zip(names, pair, strict=True)) | {"id": 1} for pair in PAIRS]
    assert fitting(rows) == (PAIRS, [])
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(map(",".join, [names, *PAIRS])) + "\n")
    assert fitting(path) == (PAIRS, [])
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert fitting(lines) == (PAIRS, [])


def test_columns_can_be_named(fitting, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("head,body,verdict,label\n" + "".join(f"text,{text[5:]},{label},x\n" for text, label in PAIRS))
    assert fitting(path, columns=Columns("head+body", "", "verdict")) == (PAIRS, [])


def test_a_column_that_is_not_there_is_told_before_the_device_enrols():
    own = OwnData([{"text": "a", "label": "no"}], columns=Columns(label="verdict"))
    with pytest.raises(DataError, match="has no column 'verdict'; its columns are text, label: say which to take"):
        own.count()


def test_examples_of_one_class_are_told_with_their_number(fitting):
    _, told = fitting([{"text": text, "label": "yes"} for text, _ in PAIRS])
    assert told == ["the data: all 20 examples are 'yes': this device can learn nothing about other classes"]


def test_a_row_that_lacks_its_text_is_told_with_its_place(fitting):
    with pytest.raises(DataError, match="the data, row 20: has no text; its fields are label"):
        fitting([{"text": text, "label": label} for text, label in PAIRS[:19]] + [{"label": "no"}])


def test_rows_that_are_no_examples_are_counted_by_label():
    rows = [{"text": "a", "label": label} for label in ("no", "so", "so", "maybe", "yes", "a", "b")] + [{"label": "no"}]
    named = "5 of 8 rows have a label that it does not know: 'so' (2), 'maybe' (1), 'a' (1) and 1 more"
    assert misfit("seq-cls", rows) == f"{named}; 1 of 8 rows: has no text; its fields are label"
    assert misfit("seq-cls", rows, bad_rows="skip") == ""
    assert misfit("seq-cls", rows[:1]) == ""


def misfit(task: str, rows, **options) -> str:
    kind = TASK_TYPES[task]
    return OwnData(rows, **options).misfit(kind.fields, kind.first_check(NAMES), converses=kind.converses)


TURNS = [{"from": "human", "value": "is there ice?"}, {"from": "gpt", "value": "there is."}]


@pytest.mark.parametrize(
    ("task", "good", "bad", "why"),
    [
        ("causal-lm", {"text": "a"}, {"text": 7}, "text must be a text, got int"),
        ("causal-lm", {"text": "a"}, {"body": "a"}, "has no text; its fields are body"),
        ("causal-lm", {"text": "a", "messages": None}, {"messages": None, "body": "a"}, "has no text; its fields are "),
        ("causal-lm", {"prompt": "a", "completion": "b"}, {"prompt": "a"}, "both belong together"),
        ("causal-lm", {"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": ""}, "completion is empty"),
        ("causal-lm", {"conversations": TURNS}, {"conversations": []}, "conversations must look like"),
        (
            "causal-lm",
            {"conversations": TURNS},
            {"conversations": [*TURNS, {"from": "moderator", "value": "closed"}]},
            "message 3 is from 'moderator', known are human",
        ),
        (
            "causal-lm",
            {"messages": [{"role": "user", "content": "a"}]},
            {"messages": [{"role": "user"}]},
            "message 1 must have a content that is a text, got none",
        ),
        (
            "qa",
            {"question": "who?", "context": "a man", "answers": {"text": ["man"], "answer_start": [2]}},
            {"question": "who?", "context": "a man", "answers": {"text": ["man"], "answer_start": [1]}},
            "the answer 'man' is not at position 1 of its context",
        ),
    ],
)
def test_rows_that_are_no_examples_are_told_before_the_bundle_is_there(task, good, bad, why):
    assert misfit(task, [good, good]) == ""
    told = misfit(task, [good, bad, good])
    assert told.startswith("1 of 3 rows: ")
    assert why in told
    assert misfit(task, [good, bad, good], bad_rows="skip") == ""


def test_a_table_of_prompts_and_completions_is_no_table_without_a_header(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,completion\nhow are you,fine\n")
    assert OwnData(path).count() == 1
