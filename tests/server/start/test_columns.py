"""Test what a file is taken for: rows of language models where they are such, and classes as before."""

import random

import pytest

from edge_client.data.columns import Columns
from edge_client.errors import DataError
from server.start.columns import columns_in

WORDS = ["the", "tea", "is", "hot", "cold", "ready", "and", "very", "good", "today", "for", "you"]
ALL = Columns()


def text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 9)))


def rows(**columns) -> list[dict]:
    """Sixty, each value as its column makes it."""
    rng = random.Random()
    return [{name: make(rng) for name, make in columns.items()} for _ in range(60)]


def one_of(*values):
    return lambda rng: rng.choice(values)


def talk(rng: random.Random) -> list[dict]:
    return [{"from": "human", "value": text(rng)}, {"from": "gpt", "value": text(rng)}]


@pytest.mark.parametrize(
    ("made", "columns"),
    [
        (rows(instruction=text, input=one_of("", "a b"), output=text), "instruction output input"),
        (rows(instruction=text, input=text, output=text, text=text), "instruction output input"),
        (
            rows(instruction=text, context=text, response=text, category=one_of("a", "b")),
            "instruction response context",
        ),
        (rows(instruction=text, output=one_of("spam", "ham")), "instruction output"),
        (rows(id=text, conversations=talk, source=one_of("a", "b")), "conversations"),
        (rows(conversations=lambda rng: f'[{{"from": "gpt", "value": "{text(rng)}"}}]', id=text), "conversations"),
        (rows(question=text, answer=text, id=one_of(*range(9))), "question answer"),
        (
            rows(question=text, answer=one_of("the tea is hot and ready for you", "it is cold today and very good")),
            "question answer",
        ),
        (rows(prompt=text, response=text), "prompt response"),
        (rows(prompt=text, output=text), "prompt output"),
        (rows(query=text, response=text, source=one_of("a", "b")), "query response"),
        ([*rows(instruction=text, output=text), {"instruction": "a", "output": None}], "instruction output"),
    ],
)
def test_rows_of_language_models(made, columns):
    found = columns_in(made, ALL, None, "rows.jsonl")
    assert (found.task, list(found.fields)) == ("causal-lm", columns.split())
    assert found.guessed == (columns.split()[0] in ("question", "prompt", "query"))


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (rows(text=text, output=one_of("spam", "ham")), ("text", "output")),
        (rows(text=text, label=one_of("a", "b"), question=text, answer=text), ("text", "label")),
        (rows(instruction=text, output=text, sentence=text, label=one_of("a", "b")), ("sentence", "label")),
        (rows(question=text, answer=one_of("yes", "no")), ("question", "answer")),
        (rows(question=text, answer=one_of("yes it is", "no it is not")), ("question", "answer")),
        (rows(question=text, label=one_of("a", "b")), ("question", "label")),
        (rows(prompt=text, response=one_of(True, False)), ("prompt", "response")),
        (rows(conversation=text, label=one_of("a", "b")), ("conversation", "label")),
        (rows(passage=text, question=text, answer=text, label=one_of("a", "b")), ("passage", "label")),
    ],
)
def test_classes_stay_what_they_are(made, fields):
    found = columns_in(made, ALL, None, "rows.jsonl")
    assert found.task == "seq-cls"
    assert (found.fields["text"], found.fields["label"]) == ((fields[0],), (fields[1],))


def test_a_usual_column_of_classes_decides_over_questions_with_answers():
    made = rows(question=text, answer=text, category=one_of("a", "b"))
    assert columns_in(made, ALL, None, "rows.jsonl").fields["label"] == ("category",)
    assert columns_in(made, ALL, "causal-lm", "rows.jsonl").fields.keys() == {"question", "answer"}


def test_what_is_asked_for_decides():
    made = rows(instruction=text, output=one_of("spam", "ham"))
    found = columns_in(made, Columns(label="output"), None, "rows.jsonl")
    assert (found.task, found.fields) == ("seq-cls", {"text": ("instruction",), "label": ("output",)})
    assert columns_in(made, Columns(text="output"), "causal-lm", "rows.jsonl").fields == {"text": ("output",)}


def test_answers_within_a_context_are_no_pairs():
    context = rows(question=text, context=text, answers=lambda rng: {"text": ["the"], "answer_start": [0]})
    assert columns_in(context, ALL, None, "rows.jsonl").task == "qa"
    with pytest.raises(DataError, match="has no column that looks like the classes"):
        columns_in(rows(question=text, context=text, answer=text), ALL, None, "rows.jsonl")


def test_of_columns_that_could_be_classes_the_name_decides_and_others_are_told():
    made = rows(Kanal=one_of("a", "b"), Freitext=text, **{"Topic/Code": one_of(*"ABCDEFGH")}, Datum=one_of(*range(9)))
    found = columns_in(made, ALL, None, "rows.csv")
    assert (found.fields["text"], found.fields["label"]) == (("Freitext",), ("Topic/Code",))
    assert set(found.others) == {"Kanal", "Datum"}
    assert found.others["Kanal"] == 2
    unnamed = columns_in(rows(kind=one_of("a", "b"), body=text), ALL, None, "rows.csv")
    assert (unnamed.fields["label"], unnamed.others) == (("kind",), {})
