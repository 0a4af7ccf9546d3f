"""Exact through the model's last blocks, forward before them, in one pass; and as deep as a device can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge_client.arrays import Weights
from edge_client.bundle.chain import Chain, exact_cut, first_use
from edge_client.bundle.manifest import Manifest, ProgramSpec
from edge_client.data.batches import Batch
from edge_client.wire.protocol import Training

from .directed import DirectedEstimator
from .estimator import REVERSE, TANGENT, Estimate


class Mixed(DirectedEstimator):
    """Exact through the model's last blocks, forward before them.

    The gradient that arrives where the way back ends, times the tangents that arrive at the same place, gives the
    directional derivatives: no block is gone through for both.
    """

    along = True

    @classmethod
    def settled(cls, training: Training) -> Training:
        """Settle the head's gradient as exact: the backward pass begins there."""
        return replace(training, head="exact")

    @classmethod
    def joined(cls, manifest: Manifest, training: Training, units: Sequence[int]) -> tuple[int, ...]:
        """Add all units of the last blocks, whose gradients the backward pass computes."""
        end = exact_cut(manifest, 0, training.exact_blocks)
        late = (number for number, unit in enumerate(manifest.units) if first_use(manifest, unit) >= end)
        return tuple(sorted({*units, *late}))

    @classmethod
    def exact_from(cls, manifest: Manifest, training: Training, cut: int) -> int:
        """Backpropagate through as many blocks as the job says, but none in vain."""
        return exact_cut(manifest, cut, training.exact_blocks)

    @classmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:
        """Return the prefix as it is, tangents from the cut on, and the last segments forward and in reverse."""
        return chain.mixed(cut, cls.exact_from(chain.manifest, training, cut))

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """Count a pass, one more over what each direction goes through, and the way back through the last blocks."""
        return 1 + TANGENT * tangents + REVERSE * behind

    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:
        """Compute the loss, the true gradients of the head and of the last units, and the estimate of the others'."""
        step = self.passes.mixed(batch, weights, self.within(batch, iteration))
        self.moved = step.moved
        report = self.told(batch, step.loss, step.jvp)
        return Estimate(report.loss, self.estimated(report, iteration) | self.own(step.gradients))


class Auto(Mixed):
    """A job's word for the step that each device can hold: exact through as many blocks as its memory allows."""

    @classmethod
    def variants(cls, training: Training, manifest: Manifest) -> list[Training]:
        """Exact through all blocks, or else through fewer; no task says `auto`."""
        depths = range(manifest.model.blocks, -1, -1)
        return [replace(training, estimator="mixed", exact_blocks=depth) for depth in depths]
