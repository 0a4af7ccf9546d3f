"""The arithmetic of a round: the weighted mean of updates, one at a time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest


class Mean:
    """The mean of updates weighted by examples, apart for every parameter over those that hold it.

    Holds one sum of the model's trainable parameters, however many updates there are.
    """

    def __init__(self) -> None:
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._examples: dict[str, float] = {}

    def add(self, update: Mapping[str, NDArray[Any]], examples: float | Mapping[str, float]) -> None:
        """Take one update into the sum, with one weight or one for each parameter; the update itself is not kept."""
        for name, value in update.items():
            weight = examples[name] if isinstance(examples, Mapping) else examples
            if name in self._sums:
                self._sums[name] += np.multiply(value, weight, dtype=np.float64)
                self._examples[name] += weight
            else:
                self._sums[name] = np.multiply(value, weight, dtype=np.float64)
                self._examples[name] = weight

    def changes(self, weights: Weights) -> Weights:
        """What the mean moves; parameters that no update holds are not in it."""
        return {
            name: (total / self._examples[name] - weights[name]).astype(np.float32)
            for name, total in self._sums.items()
        }


def bounded(counts: Sequence[int], bound: float) -> list[float]:
    """Weights of which none is more than `bound` times the median one; of an even number the lower median counts.

    A device says itself how many examples it has: no more than a share of the mean must hang on its word.
    """
    if not counts:
        return []
    largest = bound * statistics.median_low(counts)
    return [min(count, largest) for count in counts]


def weights_of(
    holders: Sequence[tuple[Sequence[int], int]], bound: float, manifest: Manifest
) -> list[dict[str, float]]:
    """What clients with these units and examples weigh in each parameter, bounded among the holders of each unit."""
    head: list[int] = list(range(len(holders)))
    of_unit: dict[int, list[int]] = defaultdict(list)
    for client, (units, _) in enumerate(holders):
        for unit in units:
            of_unit[unit].append(client)
    weights: list[dict[str, float]] = [{} for _ in holders]
    groups = [(manifest.units[unit].parameters, clients) for unit, clients in of_unit.items()]
    for parameters, clients in [*groups, (manifest.head, head)]:
        counts = bounded([holders[client][1] for client in clients], bound)
        for client, count in zip(clients, counts, strict=True):
            weights[client].update(dict.fromkeys((parameter.name for parameter in parameters), count))
    return weights
