"""Each rule against numbers worked out by hand."""

import numpy as np
import pytest

from server.aggregation.clipped import clipped
from server.aggregation.median import median
from server.aggregation.registry import AGGREGATION_RULES
from server.aggregation.rule import middle, weighted_mean
from server.aggregation.trimmed import cut_of, trimmed


def rows(*values):
    return np.array(values, np.float64)


EQUAL = np.ones(3)


def test_the_mean():
    np.testing.assert_array_equal(weighted_mean(rows([1, 2], [3, 6]), rows(1, 3)), [2.5, 5.0])


def test_the_clipped_mean_shortens_what_is_longer_than_the_median():
    changes = rows([3, 4], [0, 1], [-6, -8])  # 5, 1 and 10 long: the last is halved
    np.testing.assert_allclose(clipped(changes, EQUAL), [0, 1 / 3])


def test_a_clipped_liar_has_one_voice():
    changes = rows([1, 0], [1, 0], [-2.5, 0])
    np.testing.assert_allclose(clipped(changes, EQUAL), [1 / 3, 0])


def test_what_is_more_than_three_times_as_long_has_none():
    changes = rows([1, 0], [0, 1], [-5, 0])
    np.testing.assert_allclose(clipped(changes, rows(1, 1, 0.5)), [1 / 2, 1 / 2])


def test_the_median_length_is_weighted():
    assert middle(rows(1, 2, 3), rows(1, 1, 5)) == 3
    assert middle(rows(3, 1, 2), EQUAL) == 2
    assert middle(rows(4, 1), np.ones(2)) == 1  # the lower of two


@pytest.mark.parametrize(
    ("holders", "cut"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3), (10, 3), (11, 4), (20, 6), (100, 30)]
)
def test_three_of_ten_are_cut_at_each_end(holders, cut):
    assert cut_of(holders) == cut


def test_the_trimmed_mean_leaves_the_ends_out_number_by_number():
    changes = rows([1, 9], [2, 8], [3, -90], [50, 7])
    np.testing.assert_allclose(trimmed(changes, np.ones(4)), [2.5, 7.5])
    np.testing.assert_allclose(trimmed(changes, rows(1, 3, 1, 1)), [(3 * 2 + 3) / 4, (8 * 3 + 7) / 4])


def test_the_median_is_taken_number_by_number():
    np.testing.assert_array_equal(median(rows([1, 9], [2, 8], [3, -90]), EQUAL), [2, 8])
    np.testing.assert_array_equal(median(rows([1], [2], [4], [90]), np.ones(4)), [3])  # exactly half lies below


def test_the_median_is_weighted():
    assert median(rows([1], [2], [3]), rows(5, 1, 1)) == 1
    assert median(rows([1], [2], [3]), rows(1, 1, 5)) == 3
    assert median(rows([1], [2], [3]), rows(2, 1, 1)) == 1.5


@pytest.mark.parametrize("name", AGGREGATION_RULES)
def test_holders_that_agree_are_believed(name):
    changes = np.tile(rows(0.5, -2, 0), (5, 1))
    np.testing.assert_allclose(AGGREGATION_RULES[name].centre(changes, rows(1, 2, 3, 4, 5)), [0.5, -2, 0])


@pytest.mark.parametrize("name", ["clipped", "trimmed", "median"])
def test_three_of_ten_do_not_turn_the_others_round(name):
    changes = np.random.default_rng(0).normal(1, 0.1, (10, 50))
    changes[:3] *= -5
    assert (AGGREGATION_RULES[name].centre(changes, np.ones(10)) > 0.3).all()
    assert (weighted_mean(changes, np.ones(10)) < 0).all()


@pytest.mark.parametrize("name", AGGREGATION_RULES)
def test_nothing_moves_nothing(name):
    assert not AGGREGATION_RULES[name].centre(np.zeros((4, 3)), np.ones(4)).any()
