"""Differences of losses on both sides of the weights (MeZO, Baffle+, FwdLLM+)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.chain import Chain
from edge_client.bundle.manifest import Manifest, ProgramSpec
from edge_client.data.batches import Batch
from edge_client.errors import TrainingError
from edge_client.wire.protocol import Task, Training
from edge_client.wire.scalars import ScalarReport

from .directed import ScalarEstimator
from .estimator import Derivatives


class Central(ScalarEstimator):
    """Units and head move together along each direction, which all examples share."""

    def __init__(self, manifest: Manifest, task: Task, passes: Derivatives) -> None:
        super().__init__(manifest, task, passes)
        if task.training.head != "joint" and manifest.head:
            raise TrainingError(
                f"central differences move units and head together: the job needs head=joint, it has "
                f"head={task.training.head}"
            )

    @classmethod
    def settled(cls, training: Training) -> Training:
        """Units and head move together, along directions that all examples share."""
        return replace(training, head="joint", per_example=False)

    @classmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:  # noqa: ARG003 -- has no choice
        """List the forward programs of all segments."""
        return chain.forward()

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """Forth and back along each direction."""
        return 2.0 * training.directions

    def report(self, batch: Batch, weights: Weights, iteration: int) -> ScalarReport:
        directions = self.directions(iteration)
        walked = [self.walk(batch, weights, directions, k) for k in range(self.training.directions)]
        losses, slopes = zip(*walked, strict=True)
        return self.reported(batch, np.mean(losses, axis=0), np.stack(slopes))

    def walk(self, batch: Batch, weights: Weights, directions: Mapping[str, Array], k: int) -> tuple[Array, Array]:
        """Forth and back along one direction: each example's mean loss, and its slope."""
        sigma = self.training.sigma
        above, below = (
            self.passes.losses(batch, weights | {n: weights[n] + side * v[k] for n, v in directions.items()})
            for side in (sigma, -sigma)
        )
        return (above + below) / 2, (above - below) / np.float32(2 * sigma)

    def reported(self, batch: Batch, loss: Array, slopes: Array) -> ScalarReport:
        """Report the slopes, which have the head's part, with zeros as the head's own."""
        return self.told(batch, loss, slopes, head_jvp=np.zeros_like(slopes) if self.manifest.head else None)
