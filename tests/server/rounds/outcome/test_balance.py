"""Weights by which what clients' labels pull at cancels out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.bundle.folder import Bundle
from server.rounds.outcome.balance import MOST, balanced, errors_of, factors


def test_two_of_one_class_weigh_as_much_as_one_of_another():
    """By hand: errors 1, 1, -1, of mean 1/3 and spread 8/9, eased by a third of itself."""
    errors = np.array([[1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    spread = 2 * 8 / 9
    eased = spread + spread / 3  # along (1, -1), the only direction there is
    times = 1 - np.array([2 / 3, 2 / 3, -4 / 3]) * 2 * (1 / 3) / eased
    np.testing.assert_allclose(factors(errors, np.ones(3)), times)
    assert times[2] > 1 > times[0] == times[1]


@given(st.integers(2, 40), st.integers(2, 9), st.integers(0, 2**32))
def test_what_errors_sum_to_comes_closer_to_nothing(clients, classes, seed):
    rng = np.random.default_rng(seed)
    errors, weights = rng.normal(size=(clients, classes)), rng.uniform(1, 4, clients)
    times = factors(errors, weights)
    assert (times >= 0).all()
    assert (times <= MOST).all()
    before, after = (np.linalg.norm(own @ errors / own.sum()) for own in (weights, weights * times))
    assert after <= before * (1 + 1e-9)
    if clients >= 5 * classes:
        assert after < 0.5 * before


def test_a_mean_that_depends_on_classes_alone_is_left_of_them():
    """Updates that are a sum over a client's classes come to what a balanced round would have."""
    rng = np.random.default_rng()
    shares = rng.dirichlet([0.1] * 3, 200)
    errors = shares - 1 / 3
    updates = 5.0 + errors @ rng.normal(size=(3, 10))
    times = factors(errors, np.ones(200))
    apart = [np.abs(np.average(updates, axis=0, weights=own) - 5.0).max() for own in (np.ones(200), times)]
    assert apart[1] < 0.1 * apart[0]


@pytest.mark.parametrize("errors", [np.zeros((3, 2)), np.ones((3, 2)), np.full((3, 2), np.nan), np.ones((1, 2))])
def test_who_says_the_same_weighs_the_same(errors):
    np.testing.assert_array_equal(factors(errors, np.ones(len(errors))), np.ones(len(errors)))


def test_who_claims_much_gains_little():
    rng = np.random.default_rng()
    errors = rng.normal(size=(12, 3))
    errors[0] *= 1e6
    times = factors(errors, np.ones(12))
    assert times[0] < 0.2
    assert times.max() <= MOST


def test_each_units_holders_are_weighed_among_themselves(bundle):
    with Bundle.open(bundle) as opened:
        manifest = opened.manifest
    first, second = ([parameter.name for parameter in manifest.units[unit].parameters] for unit in (0, 1))
    head = [parameter.name for parameter in manifest.head]
    weights = [
        dict.fromkeys([*first, *head], 8.0),
        dict.fromkeys([*first, *head], 8.0),
        dict.fromkeys([*second, *head], 2.0),
    ]
    errors = np.array([[1.0, -1.0], [-0.5, 0.5], [1.0, -1.0]])
    after = balanced(weights, errors, manifest)
    times = factors(errors[:2], np.array([8.0, 8.0]))
    assert [after[client][first[0]] for client in (0, 1)] == (8.0 * times).tolist()
    assert after[2][second[0]] == 2.0
    assert [own[head[0]] for own in after] == [8.0, 8.0, 2.0]
    assert [set(own) for own in after] == [set(own) for own in weights]


def test_errors_are_what_the_bias_moved_by():
    start = {"bias": np.array([0.5, -0.5], np.float32)}
    updates = [{"bias": np.array([0.75, -0.75], np.float32)}, {"bias": np.array([0.5, -0.5], np.float32)}]
    np.testing.assert_array_equal(errors_of(start, updates, "bias"), [[0.25, -0.25], [0.0, 0.0]])
