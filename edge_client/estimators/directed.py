"""Estimators along directions that anybody can draw again, and those whose step is numbers along them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.data.batches import Batch
from edge_client.gradient.drawing import Draw, combine, step_directions, without_padding
from edge_client.gradient.estimate import shares
from edge_client.wire.scalars import ScalarReport, split_head

from .estimator import Estimate, Estimator, mean_loss


class DirectedEstimator(Estimator):
    """An estimator along directions that anybody can draw again."""

    draw: Draw = staticmethod(step_directions)
    """The function that draws its directions."""
    _drawn: tuple[int, dict[str, Array]] | None = None
    moved: Mapping[str, Array] = MappingProxyType({})
    """The last report's directions at bottlenecks, as directions of weights."""

    def told(
        self,
        batch: Batch,
        loss: Array,
        jvp: Array,
        head_jvp: Array | None = None,
        head_gradient: NDArray[np.float32] | None = None,
    ) -> ScalarReport:
        """Reduce derivatives [K, batch] to what is reported: along shared directions, their mean over examples."""
        if not self.training.per_example:
            share = shares(batch.weight, len(batch.weight))
            jvp = (jvp @ share)[:, None]
            head_jvp = None if head_jvp is None else (head_jvp @ share)[:, None]
        return ScalarReport(mean_loss(loss, batch), batch.examples, jvp, head_jvp, head_gradient)

    def directions(self, iteration: int) -> dict[str, Array]:
        """[K * rows, *shape]; of one step, kept until the next."""
        if self._drawn is None or self._drawn[0] != iteration:
            units = self.directed(self.manifest, self.training, self.task.units, self.task.cut)
            drawn = self.draw(self.manifest, units, self.task.seed, self.training, iteration)
            self._drawn = iteration, drawn
        return self._drawn[1]

    def within(self, batch: Batch, iteration: int) -> dict[str, Array]:
        """Return a step's directions, without those at padded tokens of its batch."""
        return without_padding(self.directions(iteration), self.manifest, batch.tokens["attention_mask"])

    def estimated(self, report: ScalarReport, iteration: int) -> Weights:
        """Compute the gradient that a step's numbers make along its directions."""
        return combine(report, {**self.directions(iteration), **self.moved}, self.manifest, self.training)


class ScalarEstimator(DirectedEstimator):
    """An estimator whose step is numbers along its directions, so that mode iteration can send them instead."""

    @abstractmethod
    def report(self, batch: Batch, weights: Weights, iteration: int) -> ScalarReport:
        """Compute what mode iteration sends of a step."""

    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:
        """Compute the estimate that the step's numbers make along its directions."""
        report = self.report(batch, weights, iteration)
        gradients = self.estimated(report, iteration)
        if report.head_gradient is not None:
            gradients |= split_head(report.head_gradient, self.manifest)
        return Estimate(report.loss, gradients)
