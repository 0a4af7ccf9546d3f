"""Average without the largest and the smallest changes, number by number: the trimmed mean.

At each end so many go as there may be malicious devices: three of ten holders, rounded up, as long as one is left.
Malicious devices that act alike are all at one end.
"""

from __future__ import annotations

import numpy as np

from server.aggregation.rule import Numbers, Rule

_CUT, _OF = 3, 10


def cut_of(holders: int) -> int:
    """Return how many are left out at each end."""
    return min(-(-_CUT * holders // _OF), (holders - 1) // 2)


def trimmed(changes: Numbers, weights: Numbers) -> Numbers:
    """Average what is between the cuts by weight, number by number."""
    cut = cut_of(len(changes))
    order = np.argsort(changes, axis=0, kind="stable")[cut : len(changes) - cut]
    kept = weights[order]
    return (np.take_along_axis(changes, order, 0) * kept).sum(0) / kept.sum(0)


TRIMMED = Rule(trimmed)
