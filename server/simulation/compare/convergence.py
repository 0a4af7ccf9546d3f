"""Find when a curve has converged, by pure functions over (round, value) in the order of the rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import pvariance

Point = tuple[int, float]
"""A round, counted from 1, and what was measured after it."""
INTERVAL = 50
"""The paper's, in rounds."""
TOLERANCE = 1e-4
"""The tolerance between two variances that count as equal: of a score from 0 to 1, a point squared."""
SHARE = 0.95


def converged_round(points: Sequence[Point], interval: int = INTERVAL, tolerance: float = TOLERANCE) -> int | None:
    """Return the round by which the paper's rule calls a curve converged; None where it does not.

    The rule is "the absence of change in the variance of a performance metric, assessed at intervals of 50 rounds".
    It is read so: at the end of every interval the variance of the values within it is compared with that of the
    interval before. Converged is the first of these moments after which no variance differs from the one before it by
    more than the tolerance. So two whole intervals are the least that it takes, with two values in each. The rule looks
    at variances alone: a curve that rises evenly, or never leaves chance, meets it too.
    """
    windows: dict[int, list[float]] = defaultdict(list)
    for number, value in points:
        windows[(number - 1) // interval].append(value)
    whole = points[-1][0] // interval if points else 0
    variances = [pvariance(windows[i]) if len(windows[i]) > 1 else None for i in range(whole)]
    converged = None
    for ended, (before, after) in enumerate(pairwise(variances), start=2):
        same = before is not None and after is not None and abs(after - before) <= tolerance
        converged = (converged or ended * interval) if same else None
    return converged


def round_of_share(points: Sequence[Point], share: float = SHARE) -> int | None:
    """Return the first round whose value reaches a share of the last value."""
    wanted = share * points[-1][1] if points else 0.0
    return next((number for number, value in points if value >= wanted), None)


def seconds_until(number: int, seconds: Iterable[Point]) -> float:
    """Sum the seconds of the rounds up to one."""
    return sum(taken for at, taken in seconds if at <= number)


def last(points: Sequence[Point]) -> float | None:
    return points[-1][1] if points else None


def best(points: Sequence[Point]) -> float | None:
    return max((value for _, value in points), default=None)


def least(points: Sequence[Point]) -> float | None:
    """Return the least value of a curve that should fall."""
    return min((value for _, value in points), default=None)


def fall(points: Sequence[Point]) -> float | None:
    """Return the fall from the best value to the last."""
    return max(value for _, value in points) - points[-1][1] if points else None
