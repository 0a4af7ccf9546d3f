import pytest

from server.simulation.compute.answers import Scores, exact_match, f1, scores, words


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
    assert words(" An apple,\ta PEAR — and 'the' end\n") == ["apple", "pear", "—", "and", "end"]


def test_means():
    found = scores([("Ann", ["Ann"]), ("big Ann", ["Ann"]), (None, ["Ann"]), (None, [])])
    assert found == Scores(exact_match=0.5, f1=pytest.approx((1 + 2 / 3 + 0 + 1) / 4))
    assert scores([]) == Scores(0.0, 0.0)
