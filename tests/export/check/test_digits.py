"""Which segments get a second digit, by what each one's rounding costs a model's derivatives."""

from __future__ import annotations

import pytest

from export.check.digits import costliest, groups

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
