"""Convergence of a curve: pure functions over a series of finite values by round, in their order."""

from __future__ import annotations

import pandas as pd

INTERVAL = 50
"""The paper's, in rounds."""
TOLERANCE = 1e-4
"""The tolerance between two variances that count as equal: of a score from 0 to 1, a point squared."""
SHARE = 0.95


def converged_round(points: pd.Series, interval: int = INTERVAL, tolerance: float = TOLERANCE) -> int | None:
    """The round by which the paper's rule calls a curve converged; None where it does not.

    The rule is "the absence of change in the variance of a performance metric, assessed at intervals of 50 rounds".
    It is read so: at the end of every interval the variance of the values within it is compared with that of the
    interval before. Converged is the first of these moments after which no variance differs from the one before it by
    more than the tolerance. So two whole intervals are the least that it takes, with two values in each. The rule looks
    at variances alone: a curve that rises evenly, or never leaves chance, meets it too.
    """
    whole = int(points.index.max()) // interval if len(points) else 0
    windows = points.groupby((points.index - 1) // interval)
    variances = windows.var(ddof=0).where(windows.count() > 1).reindex(range(whole))
    moved = ~(variances.diff().abs() <= tolerance)
    still = (
        whole - 1 - int(moved[::-1].to_numpy().argmax()) if whole else 0
    )  # the last that moved; the first always has
    return (still + 2) * interval if still + 1 < whole else None


def round_of_share(points: pd.Series, share: float = SHARE) -> int | None:
    """The first round whose value reaches a share of the last value."""
    return int((points >= share * points.iloc[-1]).idxmax()) if len(points) else None


def seconds_to_share(points: pd.Series, seconds: pd.Series) -> float | None:
    """Add up the seconds of the rounds up to the one that reaches the share."""
    reached = round_of_share(points)
    return None if reached is None else float(seconds.loc[:reached].sum())


def last(points: pd.Series) -> float | None:
    return float(points.iloc[-1]) if len(points) else None


def best(points: pd.Series) -> float | None:
    return float(points.max()) if len(points) else None


def least(points: pd.Series) -> float | None:
    """The best value of what should fall."""
    return float(points.min()) if len(points) else None


def fall(points: pd.Series) -> float | None:
    """Return the best value less the last."""
    return float(points.max() - points.iloc[-1]) if len(points) else None
