"""What a mean of a unit's holders is: a pure function of their changes and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

FEWEST = 3
"""Of fewer holders none can be told to be the odd one."""
FAR = 3.0
"""Times the usual length: whoever goes further is named, and where changes are shortened left out."""


Judge = Callable[[Numbers, NDArray[np.bool_], float], Mapping[int, float]]
"""Who goes against the others, by places and cosines, of what each has said in all of its rounds [devices, numbers], of
who was left out the last time, and of the freedom of what is said: independent ones have products with a spread of
1/sqrt(freedom), at a length of one."""


@dataclass(frozen=True)
class Rule:
    """A mean of holders' changes."""

    centre: Callable[[Numbers, Numbers], Numbers]
    """Combine changes [holders, numbers] with weights [holders] into [numbers]; of three holders or more, in the order
    of their places."""
    limit: Callable[[Numbers, Numbers], float] | None = None
    """Where it is the mean of changes that are shortened as wholes: how long one may be, by sizes [holders] and
    weights; none is left of those that are `FAR` times as long. Mode iteration has such rules alone, as derivatives can
    be made smaller and no more."""
    judge: Judge | None = None
    """Where devices are left out whole."""


def weighted_mean(changes: Numbers, weights: Numbers) -> Numbers:
    """One holder after the other, so that the last bits are the same wherever it runs."""
    total = np.zeros(changes.shape[1])
    for change, weight in zip(changes, weights, strict=True):
        total += change * weight
    return total / max(float(weights.sum()), np.finfo(np.float64).tiny)


def standard_errors(changes: Numbers, weights: Numbers) -> Numbers:
    """Compute the standard errors of a mean of changes, as they are where holders agree in nothing."""
    return np.sqrt(np.square(changes * weights[:, None]).sum(0)) / weights.sum()


def sizes_of(changes: Numbers) -> Numbers:
    """How long each holder's change is."""
    return np.sqrt(np.square(changes).sum(1))


def mean_within(changes: Numbers, weights: Numbers, most: float) -> Numbers:
    """The mean of changes of which none is longer, without those that go far; nothing where all do."""
    shares = shares_kept(sizes_of(changes), most)
    return weighted_mean(changes * shares[:, None], weights * (shares > 0))


def no_longer(changes: Numbers, most: float) -> Numbers:
    """Shorten changes that are longer than that."""
    sizes = sizes_of(changes)
    return changes * np.divide(most, sizes, where=sizes > most, out=np.ones_like(sizes))[:, None]


def shares_kept(sizes: Numbers, most: float) -> Numbers:
    """Compute the share that is left of changes of these sizes where none may be longer."""
    shares = np.minimum(1.0, most / np.maximum(sizes, np.finfo(np.float64).tiny))
    return np.where(sizes > FAR * most, 0.0, shares)


def middle(values: Numbers, weights: Numbers) -> float:
    """The weighted median; of two in the middle the lower one."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
