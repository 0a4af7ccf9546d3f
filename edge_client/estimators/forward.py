"""Directional derivatives in the same pass as the losses (SPRY)."""

from __future__ import annotations

from edge_client.arrays import Weights
from edge_client.bundle.chain import Chain
from edge_client.bundle.manifest import ProgramSpec
from edge_client.data.batches import Batch
from edge_client.wire.protocol import Training
from edge_client.wire.scalars import ScalarReport, join_head

from .directed import ScalarEstimator
from .estimator import TANGENT


class Forward(ScalarEstimator):
    """Directional derivatives, in the same pass as the losses."""

    along = True

    @classmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:
        """Return the prefix as it is, and tangents from the cut on."""
        return [*chain.prefix(cut), *chain.suffix(cut, scalar=training.head != "exact")]

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """Count a pass, and one more over what each direction goes through."""
        return 1 + TANGENT * tangents

    def report(self, batch: Batch, weights: Weights, iteration: int) -> ScalarReport:
        scalar_head = self.training.head != "exact"
        step = self.passes.along(batch, weights, self.within(batch, iteration), scalar_head=scalar_head)
        self.moved = step.moved
        if not self.manifest.head:
            return self.told(batch, step.loss, step.jvp)
        if scalar_head:
            return self.told(batch, step.loss, step.jvp, head_jvp=step.head_jvp)
        return self.told(batch, step.loss, step.jvp, head_gradient=join_head(step.gradients, self.manifest))
