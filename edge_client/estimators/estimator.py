"""Define estimators of gradients.

A class also says what a job's settings and a device's memory must know of it, so that neither the server nor the plan
for memory names one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.chain import Chain, cut_for, first_use
from edge_client.bundle.manifest import Manifest, ProgramSpec
from edge_client.data.batches import Batch
from edge_client.gradient.drawing import numbers_moved
from edge_client.step.passes import Pass
from edge_client.wire.protocol import Task, Training

TANGENT = 1.0
"""The cost of a direction, in forward passes over the part of the model behind the cut. Measured (`docs/programs.md`,
cut at the middle block): 0.96 to 1.02 with ONNX Runtime and ExecuTorch in float32 for K = 1, 0.93 to 1.04 for K = 4."""
REVERSE = 2.0
"""A reverse pass, which computes each block again: 1.94 in float32."""


class Estimate(NamedTuple):
    """A step's loss and gradient, means over the batch's examples."""

    loss: float
    gradients: Weights


class Derivatives(Protocol):
    """The passes of a step: on a device by its programs (`edge_client.step.passes.Passes`)."""

    def along(
        self, batch: Batch, weights: Weights, directions: Mapping[str, Array], /, *, scalar_head: bool = False
    ) -> Pass:
        """Derivatives along the units' directions; of the head its exact gradient, or its own derivative."""
        ...

    def exact(self, batch: Batch, weights: Weights, /) -> Pass:
        """True gradients of units and head."""
        ...

    def mixed(self, batch: Batch, weights: Weights, directions: Mapping[str, Array], /) -> Pass:
        """True gradients of head and last units, and derivatives along the directions of units before them."""
        ...

    def losses(self, batch: Batch, weights: Weights, /) -> Array:
        """[batch], without derivatives."""
        ...


class Estimator(ABC):
    """The gradient of a task's units and of the head; `iteration` is the step's number within the round."""

    along: ClassVar[bool] = False
    """True if its programs carry a job's directions, so that the bundle must have them for so many."""

    def __init__(self, manifest: Manifest, task: Task, passes: Derivatives) -> None:
        self.manifest = manifest
        self.task = task
        self.training = self.settled(task.training)
        self.passes = passes

    @classmethod
    def settled(cls, training: Training) -> Training:
        """Settle the settings that this estimator leaves no choice of."""
        return training

    @classmethod
    def variants(cls, training: Training, manifest: Manifest) -> list[Training]:  # noqa: ARG003 -- has one
        """List training settings that a task may carry, the best first: it gets the first that its device can hold."""
        return [training]

    @classmethod
    def joined(cls, manifest: Manifest, training: Training, units: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG003
        """A client's units, and others that cost its step nothing more."""
        return tuple(units)

    @classmethod
    def inverse_variance(cls, manifest: Manifest, training: Training, units: Sequence[int]) -> dict[int, float]:
        """Return the weight of each unit's estimate beside a true gradient, from as many examples.

        Along K directions an estimate of d numbers, those of all units that share a derivative, varies (K + d + 1) / K
        times as much, where examples say little.
        """
        count, directed = training.directions, cls.directed(manifest, training, units, cut_for(manifest, units))
        numbers = sum(numbers_moved(manifest.units[unit], training) for unit in directed)
        return {unit: count / (count + numbers + 1) if unit in directed else 1.0 for unit in units}

    @classmethod
    def exact_from(cls, manifest: Manifest, training: Training, cut: int) -> int | None:  # noqa: ARG003 -- has none
        """Return the segment that a step from a cut goes back to; None where it does not go back."""
        return None

    @classmethod
    def directed(
        cls, manifest: Manifest, training: Training, units: Sequence[int], cut: int | None = None
    ) -> list[int]:
        """List a task's units whose gradients are estimated; behind the exact cut they are true gradients.

        The cut is the units' own where none is given.
        """
        end = cls.exact_from(manifest, training, cut_for(manifest, units) if cut is None else cut)
        return [unit for unit in units if end is None or first_use(manifest, manifest.units[unit]) < end]

    @classmethod
    @abstractmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:
        """List the programs that a step loads."""

    @classmethod
    @abstractmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:
        """Estimate the cost of a step, in forward passes.

        Args:
            training: the job's settings.
            tangents: the shares of the model's blocks that each direction goes through, added up.
            behind: the share of the blocks that the step goes back through.
        """

    @abstractmethod
    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:
        """Compute the loss and the gradient of one step."""

    def own(self, gradients: Weights) -> Weights:
        """Keep the gradients of what the task trains: a backward pass meets other clients' units too."""
        names = trained(self.manifest, self.task)
        return {name: value for name, value in gradients.items() if name in names}


def mean_loss(loss: Array, batch: Batch) -> float:
    """Over the batch's examples."""
    return float(loss.astype(np.float64).sum() / batch.examples)


def trained(manifest: Manifest, task: Task) -> set[str]:
    """Return the parameters that a task moves: its units' and the head's."""
    return {parameter.name for parameter in manifest.trained_with(task.units)}
