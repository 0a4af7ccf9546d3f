"""Define aggregation rules: pure functions of a unit's holders' changes and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

FEWEST = 3
"""The fewest holders among which one can be found to be the odd one."""
CLEARLY = 2.0
"""The number of standard deviations of what chance gives beyond which a sum or a cosine is not by chance."""
FAR = 3.0
"""The factor of the usual length beyond which a holder is named, and left out where changes are shortened."""


Judge = Callable[[Numbers, NDArray[np.bool_], float], Mapping[int, float]]
"""Finds the devices that go against the others, as a cosine by position.

Arguments are the sums of fingerprints [devices, numbers], a mask of the devices that were left out the last time, and
the fingerprints' freedom: independent ones of length one have products with a spread of 1/sqrt(freedom).
"""


@dataclass(frozen=True)
class Rule:
    """A rule that combines holders' changes."""

    centre: Callable[[Numbers, Numbers], Numbers]
    """Combine changes [holders, numbers] with weights [holders] into [numbers]; for three holders or more, in the order
    of their positions."""
    limit: Callable[[Numbers, Numbers], float] | None = None
    """Returns the length to which whole changes are shortened, by sizes [holders] and weights; those `FAR` times as
    long are left out. None if the rule does not shorten. Mode iteration has such rules alone: derivatives can only be
    scaled."""
    shortens_as_compared: bool = False
    """True if heads are shortened in the numbers in which they are compared, and averaged; else they are shortened
    whole and combined as other changes."""
    judge: Judge | None = None
    """The judge that leaves out whole devices; None if the rule has none."""


def weighted_mean(changes: Numbers, weights: Numbers) -> Numbers:
    """Average one holder after the other, so that the last bits are the same wherever it runs."""
    total = np.zeros(changes.shape[1])
    for change, weight in zip(changes, weights, strict=True):
        total += change * weight
    return total / max(float(weights.sum()), np.finfo(np.float64).tiny)


def standard_errors(changes: Numbers, weights: Numbers) -> Numbers:
    """Compute the standard errors of a mean of changes, as if holders were independent."""
    return np.sqrt(np.square(changes * weights[:, None]).sum(0)) / weights.sum()


def sizes_of(changes: Numbers) -> Numbers:
    """Compute the length of each holder's change."""
    return np.sqrt(np.square(changes).sum(1))


def cosines_of(changes: Numbers, others: Numbers) -> Numbers:
    """Compute the cosine of each holder's change with its own row of `others`, or with the one that they are."""
    lengths = sizes_of(changes) * sizes_of(np.atleast_2d(others))
    return (changes * others).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)


def mean_within(changes: Numbers, weights: Numbers, most: float) -> Numbers:
    """Average changes shortened to `most`, without those that go far; zeros where all do."""
    shares = shares_kept(sizes_of(changes), most)
    return weighted_mean(changes * shares[:, None], weights * (shares > 0))


def no_longer(changes: Numbers, most: float) -> Numbers:
    """Shorten changes that are longer than `most`."""
    sizes = sizes_of(changes)
    return changes * np.divide(most, sizes, where=sizes > most, out=np.ones_like(sizes))[:, None]


def shares_kept(sizes: Numbers, most: float) -> Numbers:
    """Compute the share to which changes of these sizes are shortened: 0 for those far beyond `most`."""
    shares = np.minimum(1.0, most / np.maximum(sizes, np.finfo(np.float64).tiny))
    return np.where(sizes > FAR * most, 0.0, shares)


def middle(values: Numbers, weights: Numbers) -> float:
    """Return the weighted median; of two in the middle the lower one."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
