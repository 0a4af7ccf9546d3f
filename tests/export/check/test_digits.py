"""Which segments get a second digit, by what each one's rounding costs a model's derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from export.check.digits import costliest, groups, square_error

SQUARES = {"first": 9.0, "middle": 1.0, "last": 2.0, "head": 8.0}
PRICES = {"first": 10, "middle": 10, "last": 10, "head": 80}


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [(20, set()), (11, {"first"}), (9, {"first", "last"}), (8, {"first", "last", "middle"}), (7, {*SQUARES})],
)
def test_the_largest_errors_for_their_price_go_first(allowed, expected):
    assert costliest(SQUARES, PRICES, allowed) == expected


def test_an_error_without_bound_is_never_left():
    assert costliest({**SQUARES, "head": float("inf")}, PRICES, 100) == {"head"}


def test_neighbours_stand_together_and_the_head_alone():
    found = groups([*(f"block.{number}" for number in range(30)), "head"])
    assert [len(group) for group in found] == [3] * 10 + [1]
    assert groups(["block", "head"]) == [("block",), ("head",)]
    assert groups(["head"]) == [("head",)]


def test_an_error_counts_beside_all_derivatives_that_are_known():
    known = np.array([[0.1, 0.1], [0.7, 0.7]], np.float32)  # those along the first direction happen to be small
    assert square_error(np.array([0.2, 0.0], np.float32), known) == pytest.approx(0.01 / 0.25)


def test_an_error_that_overflows_has_no_bound():
    known = np.ones((2, 2), np.float32)
    assert square_error(np.array([np.nan, 1.0], np.float32), known) == math.inf
