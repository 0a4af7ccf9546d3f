import random

import pandas as pd
import pytest

from server.simulation.compare.convergence import (
    best,
    converged_round,
    fall,
    last,
    round_of_share,
    seconds_to_share,
)


def curve(*windows, interval=10):
    """Values of windows, one after the other, spread evenly over each interval."""
    return series(
        (i * interval + (j + 1) * interval // len(values), value)
        for i, values in enumerate(windows)
        for j, value in enumerate(values)
    )


def series(points):
    return pd.Series(dict(points), dtype=float)


RISING = (0.2, 0.8)  # variance 0.09
NOISY = (0.7, 0.9)  # 0.01
FLAT = (0.79, 0.81)  # 0.0001


@pytest.mark.parametrize(
    ("windows", "tolerance", "expected"),
    [
        ([], 1e-4, None),
        ([FLAT], 1e-4, None),
        ([FLAT, FLAT], 1e-4, 20),
        ([RISING, FLAT], 1e-4, None),
        ([RISING, FLAT, FLAT], 1e-4, 30),
        ([RISING, FLAT, FLAT, FLAT], 1e-4, 30),
        ([RISING, NOISY, FLAT, FLAT], 1e-4, 40),
        ([RISING, NOISY, FLAT, FLAT], 0.02, 30),
        ([RISING, NOISY, FLAT, FLAT], 0.1, 20),
        # It stood still, and then moved again: only the end counts.
        ([FLAT, FLAT, RISING, NOISY], 1e-4, None),
        ([FLAT, FLAT, RISING, FLAT, FLAT], 1e-4, 50),
        # A single value has no variance.
        ([(0.8,), (0.8,)], 1e-4, None),
        ([FLAT, (0.8,), FLAT], 1e-4, None),
    ],
)
def test_the_rule_of_the_paper(windows, tolerance, expected):
    assert converged_round(curve(*windows), 10, tolerance) == expected


def test_an_interval_that_is_not_whole_does_not_count():
    points = curve(RISING, FLAT, FLAT)
    assert converged_round(points.rename({30: 29}), 10) is None
    assert converged_round(points, 10) == 30
    assert converged_round(pd.concat([points, series([(31, 0.1), (33, 0.9)])]), 10) == 30


def test_the_interval_is_fifty_rounds_unless_said_otherwise():
    points = series((number, 0.5) for number in range(1, 101))
    assert converged_round(points.loc[:99]) is None
    assert converged_round(points) == 100
    assert converged_round(points, 20) == 40


def test_a_difference_as_large_as_the_tolerance_is_none():
    before, after = (0.0, 1.0), (0.25, 0.75)  # variances 1/4 and 1/16
    assert converged_round(curve(before, after), 10, 3 / 16) == 20
    assert converged_round(curve(before, after), 10, 3 / 16 - 1e-9) is None


def test_the_share_of_the_final_value_is_first_reached():
    points = series([(5, 0.3), (10, 0.7599), (15, 0.77), (20, 0.6), (25, 0.8)])
    assert round_of_share(points) == 15  # 95 % of 0.8 is 0.76
    assert round_of_share(points, 0.94) == 10
    assert round_of_share(points, 0.3) == 5
    assert round_of_share(series([])) is None


def test_a_curve_that_falls_has_its_final_value_at_once():
    assert round_of_share(series([(1, 0.9), (2, 0.5)])) == 1


def test_seconds_are_those_of_all_rounds_until_the_share_is_reached():
    seconds = series([(1, 2.0), (2, 3.5), (3, 1.0)])
    for reached, taken in ((1, 2), (2, 5.5), (3, 6.5)):
        assert seconds_to_share(series((number, float(number >= reached)) for number in (1, 2, 3)), seconds) == taken
    assert seconds_to_share(series([]), seconds) is None


def test_best_last_and_the_fall_between_them():
    nothing = series([])
    assert (best(nothing), last(nothing), fall(nothing)) == (None, None, None)
    values = [random.random() for _ in range(30)]
    points = series(enumerate(values, start=1))
    assert last(points) == values[-1]
    assert best(points) == max(values)
    assert fall(points) == max(values) - values[-1]
    assert fall(pd.concat([points, series([(31, 2.0)])])) == 0
