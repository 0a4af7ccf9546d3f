import json

import numpy as np
import pytest

from edge_client import ProgramInputError, SpryError
from edge_client.bundle.manifest import IGNORED
from edge_client.data.batches import Labelled
from edge_client.data.examples import Example
from edge_client.data.sources import BadRow
from edge_client.tasks.questions import Questions, answers, exact_match, f1
from edge_client.tasks.questions import words as words_of
from edge_client.tasks.task import Prediction
from tests.edge_client import words
from tests.edge_client.words import B_, BATCH, CLS, LENGTH, SEP, A, C, D, E

KIND = Questions()
CHECK = KIND.check(())
ANN = {"text": ["Ann", "Ann."], "answer_start": [6, 6]}


def asked(question, context, answer=None, start=0):
    return Example(question, context, answer=answer, answer_start=start, answers=(answer,) if answer else ())


def part(*examples: Example) -> Labelled:
    return Labelled(list(examples), *KIND.encode(words.encoder(), examples))


def pointing(of: Labelled) -> np.ndarray:
    """Logits that say what the labels say."""
    logits = np.zeros((BATCH, LENGTH, 2), np.float32)
    logits = logits[: len(of.examples)]
    for row, (start, end) in zip(logits, of.labels, strict=False):
        row[start, 0] += 5
        row[end, 1] += 5
    return logits


# --- rows ---


def test_rows():
    found = CHECK({"question": "Who?", "context": "It is Ann.", "answers": ANN})
    assert found == Example("Who?", "It is Ann.", answer="Ann", answer_start=6, answers=("Ann", "Ann."))
    assert CHECK({"question": "Who?", "context": "It is Ann.", "answers": json.dumps(ANN)}) == found
    listed = [{"text": "It", "answer_start": 0}]
    assert CHECK({"question": "Who?", "context": "It is Ann.", "answers": listed}).answer == "It"


@pytest.mark.parametrize("answers", [None, "", [], {}, {"text": [], "answer_start": []}])
def test_a_question_without_an_answer(answers):
    assert CHECK({"question": "Who?", "context": "It is.", "answers": answers}) == Example("Who?", "It is.")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": ["Bob"], "answer_start": [0]}, "the answer 'Bob' is not at position 0"),
        ({"text": ["It"], "answer_start": []}, "a text and a position"),
        ({"text": "It"}, "answers must look like"),
        ({"text": ["It"], "answer_start": [-6]}, "a position from 0 on"),
        (5, "answers must look like"),
        ("{", "answers is not JSON"),
    ],
)
def test_bad_answers(answers, message):
    with pytest.raises(BadRow, match=message):
        CHECK({"question": "Who?", "context": "It is.", "answers": answers})


def test_a_question_needs_its_context():
    assert KIND.asked(("Who?", "It is.")) == Example("Who?", "It is.")
    with pytest.raises(SpryError, match="this job answers questions: give pairs of a question and its context"):
        KIND.asked("Who?")


# --- spans ---


def test_answers_become_spans():
    questions = asked("a", "b c d e", "c d", 2), asked("a", "b c d e"), asked("a", "b c d e f g h", "g h", 10)
    of = part(*questions)
    assert of.encoded.tokens["input_ids"][0].tolist() == [CLS, A, SEP, B_, C, D, E, SEP]
    assert of.labels.tolist() == [[4, 5], [0, 0], [IGNORED, IGNORED]]
    assert part(questions[0]).labels.tolist() == [[4, 5], [IGNORED] * 2, [IGNORED] * 2]
    assert of.labels.shape == KIND.label_shape(BATCH, LENGTH)
    assert KIND.label_limit((BATCH, LENGTH, 2), words.MANIFEST.model) == LENGTH


def test_an_answer_must_stand_where_it_is_said_to():
    with pytest.raises(ProgramInputError, match=r"the answer 'c d' is not at position 0 of its context; 'b c' is"):
        part(asked("a", "b c d", "c d", 0))


def test_spans_become_answers():
    of = part(asked("a", "b c d e", "c d", 2), asked("a", "b c"), asked("a b", "c d e"))
    logits = pointing(of)
    logits[0, 1] = 99  # a token of the question is never an answer
    logits[2, 6, 0] = logits[2, 4, 1] = 9  # nor does a span end before it starts
    assert answers(logits, of)[:2] == ["c d", None]
    assert answers(logits, of)[2] != ""
    assert answers(logits, of, longest=1)[0] in ("c", "d")


def test_what_is_right_and_what_is_read():
    of = part(asked("a", "b c d e", "c d", 2), asked("a", "b c"))
    logits = pointing(of)
    assert KIND.right(logits, of) == [True, True]
    assert KIND.read(logits, of, (), str) == [Prediction("c d"), Prediction(None)]
    swapped = logits[::-1].copy()
    assert KIND.right(swapped, of) == [False, False]
    assert KIND.told(KIND.score(swapped, of)) == {"exact_match": 0.0, "f1": 0.0}


def test_scores_forgive_more_than_what_is_right():
    """An answer that shares words, and one that another annotator gave."""
    shared = Example("a", "b c d e", answer="c d", answer_start=2, answers=("c d", "b c d"))
    other = Example("a", "b c d e", answer="e", answer_start=6, answers=("e", "d e"))
    of = part(shared, other)
    logits = np.zeros((2, LENGTH, 2), np.float32)
    logits[0, 4, 0] = logits[0, 6, 1] = 9  # c d e
    logits[1, 5, 0] = logits[1, 6, 1] = 9  # d e
    assert answers(logits, of) == ["c d e", "d e"]
    assert KIND.right(logits, of) == [False, True]
    score = KIND.score(logits, of)
    assert (score.total, score.sums["exact_match"]) == (2, 1.0)
    assert KIND.told(score) == {"exact_match": 0.5, "f1": pytest.approx((2 * 2 / (3 + 2) + 1) / 2)}


# --- SQuAD's scores ---


@pytest.mark.parametrize(
    ("predicted", "golds", "exact", "overlap"),
    [
        ("Ann", ["Ann"], 1, 1),
        ("the  Ann!", ["ANN"], 1, 1),
        ("Ann", ["Bob"], 0, 0),
        ("in the year 1973", ["1973"], 0, 2 * 1 / (3 + 1)),  # in, year, 1973
        ("two big dogs", ["a dog", "big dogs"], 0, 2 * 2 / (3 + 2)),
        ("dogs", ["cats", "Dogs.", "big dogs"], 1, 1),
        ("no no no", ["no no yes"], 0, 2 * 2 / 6),  # words count as often as they are there
        ("U.S.", ["US"], 1, 1),
        ("theatre", ["the theatre"], 1, 1),
        ("theatre", ["atre"], 0, 0),  # an article is a whole word
        ("well-known", ["well known"], 0, 0),
        # none has an answer
        (None, [], 1, 1),
        ("", [], 1, 1),
        ("The.", [], 1, 1),
        ("Ann", [], 0, 0),
        # an answer that was not given
        (None, ["Ann"], 0, 0),
        ("", ["Ann", "Bob"], 0, 0),
        # golds of which nothing counts are no answers, beside others and alone
        ("", ["the", "Ann"], 0, 0),
        ("", ["the"], 1, 1),
        ("Ann", [""], 0, 0),
    ],
)
def test_by_hand(predicted, golds, exact, overlap):
    assert exact_match(predicted, golds) == exact
    assert f1(predicted, golds) == pytest.approx(overlap)


def test_what_counts():
    assert words_of(" An apple,\ta PEAR — and 'the' end\n") == ["apple", "pear", "—", "and", "end"]
