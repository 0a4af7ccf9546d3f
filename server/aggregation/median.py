"""Take the weighted median, number by number: no minority moves it beyond the others' values."""

from __future__ import annotations

import numpy as np

from server.aggregation.rule import Numbers, Rule


def median(changes: Numbers, weights: Numbers) -> Numbers:
    """Return the value below which half of the weight lies; the mean of two where exactly half does."""
    order = np.argsort(changes, axis=0, kind="stable")
    values, reached = np.take_along_axis(changes, order, 0), np.cumsum(weights[order], axis=0)
    half = reached[-1] / 2
    lower = (reached < half).sum(0)
    upper = np.minimum((reached <= half).sum(0), len(changes) - 1)
    ends = (np.take_along_axis(values, place[None], 0)[0] for place in (lower, upper))
    return sum(ends, np.zeros(changes.shape[1])) / 2


MEDIAN = Rule(median)
