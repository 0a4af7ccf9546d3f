"""Central differences at their limit: what they tend to as their step becomes small, for a fraction of the passes.

A difference along a direction costs two passes, and a method may take forty a step. A simulator has the memory for one
pass back, after which the slope along any direction is a product. It lacks the error of a step that is not small and
the rounding of one that is: zero-order methods do slightly better by it than on devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.data.batches import Batch
from edge_client.estimators.central import Central
from edge_client.estimators.estimator import Estimator
from edge_client.step.passes import Pass
from edge_client.wire.scalars import ScalarReport
from server.simulation.methods.fwdllm import ClosestDirection


class CentralLimit(Central):
    """Slopes of the batch's mean loss, along each direction."""

    _exact: Pass | None = None

    def report(self, batch: Batch, weights: Weights, iteration: int) -> ScalarReport:
        self._exact = None
        return super().report(batch, weights, iteration)

    def walk(
        self, batch: Batch, weights: Weights, directions: Mapping[str, NDArray[Any]], k: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the mean's slope for each example, and so for their mean."""
        if self._exact is None:
            self._exact = self.passes.exact(batch, weights)
        gradients = self._exact.gradients
        slope = sum(float(np.vdot(gradients[name], values[k])) for name, values in directions.items())
        return self._exact.loss, np.float32(slope) * batch.weight


class ClosestLimit(CentralLimit, ClosestDirection):
    """The limit of central differences along the one direction that FwdLLM+ chooses."""


def at_limit(kind: type[Estimator]) -> type[Estimator]:
    """Return an estimator of central differences' limit; others as they are."""
    return _LIMITS.get(kind, kind)


_LIMITS: dict[type[Estimator], type[Estimator]] = {Central: CentralLimit, ClosestDirection: ClosestLimit}
