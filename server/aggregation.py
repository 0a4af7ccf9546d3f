"""The arithmetic of a round: the weighted mean of updates, one at a time, and which of them are outliers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.optimizers import Weights

Norms = dict[str, float]
"""Root mean square of a change, of the units ("units") and of the head ("head")."""
FEWEST_NORMS = 3
"""Below this a median says nothing."""


class Mean:
    """The mean of updates weighted by examples, apart for every parameter over those that hold it.

    Holds one sum of the model's trainable parameters, however many updates there are.
    """

    def __init__(self) -> None:
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._examples: dict[str, int] = {}

    def add(self, update: Mapping[str, NDArray[Any]], examples: int) -> None:
        """Take one update into the sum; the update itself is not kept."""
        for name, value in update.items():
            if name in self._sums:
                self._sums[name] += np.multiply(value, examples, dtype=np.float64)
                self._examples[name] += examples
            else:
                self._sums[name] = np.multiply(value, examples, dtype=np.float64)
                self._examples[name] = examples

    def changes(self, weights: Weights) -> Weights:
        """What the mean moves; parameters that no update holds are not in it."""
        return {
            name: (total / self._examples[name] - weights[name]).astype(np.float32)
            for name, total in self._sums.items()
        }


def norms(update: Mapping[str, NDArray[Any]], weights: Weights, head: frozenset[str]) -> Norms:
    """How far an update goes, of its units and of its head, whatever their number of weights."""
    found: Norms = {}
    for kind, names in (("units", update.keys() - head), ("head", update.keys() & head)):
        size = sum(update[name].size for name in names)
        if size:
            squares = sum(
                float(np.square(update[name] - weights[name], dtype=np.float64).sum()) for name in sorted(names)
            )
            found[kind] = (squares / size) ** 0.5
    return found


def beyond(update: Norms, others: Sequence[Norms], bound: float) -> str | None:
    """Which part of an update goes more than `bound` times as far as the median of the others, in words."""
    for kind, norm in update.items():
        known = [other[kind] for other in others if kind in other]
        if len(known) < FEWEST_NORMS:
            continue
        median = statistics.median(known)
        if median > 0 and norm > bound * median:
            return (
                f"its {kind} move by {norm:.3g} a weight, {norm / median:.0f} times the median of {len(known)}; "
                f"at most {bound:g} times is taken"
            )
    return None
