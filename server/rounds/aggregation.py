"""The arithmetic of a round: the weighted mean of updates, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights


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
