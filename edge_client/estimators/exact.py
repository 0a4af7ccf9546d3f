"""Reverse mode, segment by segment."""

from __future__ import annotations

from edge_client.arrays import Weights
from edge_client.bundle.chain import Chain
from edge_client.bundle.manifest import Manifest, ProgramSpec
from edge_client.data.batches import Batch
from edge_client.wire.protocol import Training

from .estimator import REVERSE, Estimate, Estimator, mean_loss


class ExactGradient(Estimator):
    """Reverse mode, one segment at a time."""

    @classmethod
    def exact_from(cls, manifest: Manifest, training: Training, cut: int) -> int:  # noqa: ARG003 -- has no choice
        """Backpropagate all the way to the cut."""
        return cut

    @classmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:  # noqa: ARG003 -- has no choice
        """List the forward programs of all segments, and the reverse ones from the cut on."""
        return chain.exact(cut)

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """Count a pass, and the way back to the first block that is trained."""
        return 1 + REVERSE * behind

    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:  # noqa: ARG002 -- draws nothing
        """Compute the loss and the true gradient of one step."""
        exact = self.passes.exact(batch, weights)
        return Estimate(mean_loss(exact.loss, batch), self.own(exact.gradients))
