"""FwdLLM+: of several directions, the one closest to where the weights last moved.

Of the K directions of a step only that one is walked, forth and back, so that a step costs two passes. The last round's
change is known to everybody who holds two versions of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.data.batches import Batch
from edge_client.estimators.central import Central
from edge_client.estimators.estimator import Estimate
from edge_client.wire.protocol import Training
from edge_client.wire.scalars import ScalarReport


class ClosestDirection(Central):
    """A central difference along the most promising direction."""

    last_change: Weights | None = None
    """The server's, of the round before; without one, the first direction is as good as any."""

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """Count the passes of a step: one of its directions is walked, forth and back."""
        return 2.0

    def report(self, batch: Batch, weights: Weights, iteration: int) -> ScalarReport:
        directions = self.directions(iteration)
        chosen = self._closest(directions)
        loss, slope = self.walk(batch, weights, directions, chosen)
        jvp = np.zeros((self.training.directions, len(slope)), np.float32)
        jvp[chosen] = self.training.directions * slope  # the mean is over all K
        return self.reported(batch, loss, jvp)

    def _closest(self, directions: Mapping[str, NDArray[Any]]) -> int:
        if not self.last_change:
            return 0
        known = {name: change for name, change in self.last_change.items() if name in directions}
        rows = {name: directions[name].reshape(self.training.directions, -1).astype(np.float64) for name in directions}
        # Not by BLAS: its threads and those of a round's clients would wait for each other.
        along = sum(np.einsum("kn,n->k", rows[name], change.reshape(-1)) for name, change in known.items())
        length = np.sqrt(sum((values**2).sum(1) for values in rows.values()))
        return int(np.argmax(np.abs(along / length)))  # a difference says the same forth and back


class GradientSpread:
    """The variance of a client's gradients from step to step, as a mean over the weights."""

    def __init__(self) -> None:
        self._steps = 0
        self._sum: dict[str, NDArray[np.float64]] = {}
        self._squares = 0.0

    def add(self, estimate: Estimate) -> None:
        self._steps += 1
        for name, gradient in estimate.gradients.items():
            wide = gradient.astype(np.float64)
            self._sum[name] = self._sum[name] + wide if name in self._sum else wide
            self._squares += float(np.square(wide).sum())

    @property
    def variance(self) -> float:
        weights = sum(value.size for value in self._sum.values())
        if self._steps < 2:
            return 0.0
        squared_mean = sum(float(np.square(value / self._steps).sum()) for value in self._sum.values())
        return max(0.0, self._squares / self._steps - squared_mean) / weights * self._steps / (self._steps - 1)
