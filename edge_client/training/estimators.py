"""How a step's gradient is found: one class each, and one row in the table at the end.

    forward   directional derivatives in the same pass as the losses (SPRY)
    central   differences of losses on both sides of the weights (MeZO, Baffle+, FwdLLM+)
    exact     reverse mode, segment by segment
    mixed     exact through the model's last blocks, forward before them, in one pass
    auto      mixed, through as many blocks as a device's memory allows: the server settles it task by task

The first two are numbers along directions, which mode iteration sends in place of a gradient. Another distribution adds
one by an entry point of the group `spry.estimators`, on the server and on its devices. A class also says what a
job's settings and a device's memory must know of it, so that neither the server nor the plan for memory names one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_client import plugins
from edge_client.arrays import Array, Weights
from edge_client.bundle.chain import Chain, cut_for, exact_cut, first_use
from edge_client.bundle.manifest import Manifest, ProgramSpec
from edge_client.data.batches import Batch
from edge_client.errors import TrainingError
from edge_client.gradient.drawing import Draw, combine, step_directions, without_padding
from edge_client.gradient.estimate import shares
from edge_client.step.passes import Pass
from edge_client.wire.protocol import Task, Training
from edge_client.wire.scalars import ScalarReport, join_head, split_head

TANGENT = 1.0
"""What a direction adds, in forward passes over the part of the model behind the cut. Measured (`docs/programs.md`, cut
at the middle block): 0.96 to 1.02 with ONNX Runtime and ExecuTorch in float32 for K = 1, 0.93 to 1.04 for K = 4."""
REVERSE = 2.0
"""A reverse pass, which computes each block again: 1.94 in float32."""


class Estimate(NamedTuple):
    """A step's loss and gradient, means over the batch's examples."""

    loss: float
    gradients: Weights


class Derivatives(Protocol):
    """Where passes are computed: on a device by its programs (`edge_client.step.passes.Passes`)."""

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
    """Whether its programs carry a job's directions, so that the bundle must have them for so many."""

    def __init__(self, manifest: Manifest, task: Task, passes: Derivatives) -> None:
        self.manifest = manifest
        self.task = task
        self.training = self.settled(task.training)
        self.passes = passes

    @classmethod
    def settled(cls, training: Training) -> Training:
        """A job's settings with those that this estimator leaves no choice of."""
        return training

    @classmethod
    def ways(cls, training: Training, manifest: Manifest) -> list[Training]:  # noqa: ARG003 -- has one
        """What a task may carry in place of a job's settings, the best first: it gets the first its device can hold."""
        return [training]

    @classmethod
    def joined(cls, manifest: Manifest, training: Training, units: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG003
        """A client's units, and others that cost its step nothing more."""
        return tuple(units)

    @classmethod
    def clarity(cls, manifest: Manifest, training: Training, units: Sequence[int]) -> dict[int, float]:
        """How much an estimate says of each unit's gradient beside a true one, from as many examples.

        Along K directions an estimate of d numbers varies (K + d + 1) / K times as much, where examples say little.
        """
        count, directed = training.directions, cls.directed(manifest, training, units, cut_for(manifest, units))
        sizes = {unit: manifest.units[unit].size for unit in directed}
        return {unit: count / (count + sizes[unit] + 1) if unit in sizes else 1.0 for unit in units}

    @classmethod
    def exact_from(cls, manifest: Manifest, training: Training, cut: int) -> int | None:  # noqa: ARG003 -- has none
        """The segment that a step from a cut goes back to; None where it does not go back."""
        return None

    @classmethod
    def directed(
        cls, manifest: Manifest, training: Training, units: Sequence[int], cut: int | None = None
    ) -> list[int]:
        """Those of a task's units whose gradients are estimated; behind where a step goes back to they are true.

        The cut is the units' own where none is given.
        """
        end = cls.exact_from(manifest, training, cut_for(manifest, units) if cut is None else cut)
        return [unit for unit in units if end is None or first_use(manifest, manifest.units[unit]) < end]

    @classmethod
    @abstractmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:
        """What a step loads."""

    @classmethod
    @abstractmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:
        """What a step costs, in forward passes.

        Args:
            training: the job's settings.
            tangents: the shares of the model's blocks that each direction goes through, added up.
            behind: the share of the blocks that the step goes back through.
        """

    @abstractmethod
    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:
        """The loss and the gradient of one step."""

    def own(self, gradients: Weights) -> Weights:
        """Those of what the task moves: the way back meets other clients' units too."""
        names = trained(self.manifest, self.task)
        return {name: value for name, value in gradients.items() if name in names}


class DirectedEstimator(Estimator):
    """An estimator along directions that anybody can draw again."""

    draw: Draw = staticmethod(step_directions)
    """Where its directions come from."""
    _drawn: tuple[int, dict[str, Array]] | None = None
    moved: Mapping[str, Array] = MappingProxyType({})
    """What the last report's directions at bottlenecks are as directions of weights."""

    def told(
        self,
        batch: Batch,
        loss: Array,
        jvp: Array,
        head_jvp: Array | None = None,
        head_gradient: NDArray[np.float32] | None = None,
    ) -> ScalarReport:
        """What is reported of derivatives [K, batch]; those along a direction that examples share count together."""
        if not self.training.per_example:
            share = shares(batch.weight, len(batch.weight))
            jvp = (jvp @ share)[:, None]
            head_jvp = None if head_jvp is None else (head_jvp @ share)[:, None]
        return ScalarReport(_mean(loss, batch), batch.examples, jvp, head_jvp, head_gradient)

    def directions(self, iteration: int) -> dict[str, Array]:
        """[K * rows, *shape]; of one step, kept until the next."""
        if self._drawn is None or self._drawn[0] != iteration:
            units = self.directed(self.manifest, self.training, self.task.units, self.task.cut)
            drawn = self.draw(self.manifest, units, self.task.seed, self.training, iteration)
            self._drawn = iteration, drawn
        return self._drawn[1]

    def within(self, batch: Batch, iteration: int) -> dict[str, Array]:
        """A step's directions, without what lies at padded tokens of its batch."""
        return without_padding(self.directions(iteration), self.manifest, batch.tokens["attention_mask"])

    def estimated(self, report: ScalarReport, iteration: int) -> Weights:
        """The gradient that a step's numbers make along its directions."""
        return combine(report, {**self.directions(iteration), **self.moved}, self.manifest, self.training)


class ScalarEstimator(DirectedEstimator):
    """One whose step is numbers along its directions, so that mode iteration can send them instead."""

    @abstractmethod
    def report(self, batch: Batch, weights: Weights, iteration: int) -> ScalarReport:
        """What mode iteration sends of a step."""

    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:
        """The estimate that the step's numbers make along its directions."""
        report = self.report(batch, weights, iteration)
        gradients = self.estimated(report, iteration)
        if report.head_gradient is not None:
            gradients |= split_head(report.head_gradient, self.manifest)
        return Estimate(report.loss, gradients)


class Forward(ScalarEstimator):
    """Directional derivatives, in the same pass as the losses."""

    along = True

    @classmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:
        """The prefix as it is, and tangents from the cut on."""
        return [*chain.prefix(cut), *chain.suffix(cut, scalar=training.head != "exact")]

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """A pass, and one more over what each direction goes through."""
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
        """All segments forward."""
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
        """The head's part of the slopes is in the units'."""
        return self.told(batch, loss, slopes, head_jvp=np.zeros_like(slopes) if self.manifest.head else None)


class ExactGradient(Estimator):
    """Reverse mode, one segment at a time."""

    @classmethod
    def exact_from(cls, manifest: Manifest, training: Training, cut: int) -> int:  # noqa: ARG003 -- has no choice
        """All the way to the cut."""
        return cut

    @classmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:  # noqa: ARG003 -- has no choice
        """All segments forward, and those from the cut on in reverse."""
        return chain.exact(cut)

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """A pass, and the way back to the first block that is trained."""
        return 1 + REVERSE * behind

    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:  # noqa: ARG002 -- draws nothing
        """The loss and the true gradient of one step."""
        exact = self.passes.exact(batch, weights)
        return Estimate(_mean(exact.loss, batch), self.own(exact.gradients))


class Mixed(DirectedEstimator):
    """Exact through the model's last blocks, forward before them.

    The gradient that arrives where the way back ends, times the tangents that arrive at the same place, gives the
    directional derivatives: no block is gone through for both.
    """

    along = True

    @classmethod
    def settled(cls, training: Training) -> Training:
        """The way back begins at the head."""
        return replace(training, head="exact")

    @classmethod
    def joined(cls, manifest: Manifest, training: Training, units: Sequence[int]) -> tuple[int, ...]:
        """The way back through the last blocks finds the gradients of all units there."""
        end = exact_cut(manifest, 0, training.exact_blocks)
        late = (number for number, unit in enumerate(manifest.units) if first_use(manifest, unit) >= end)
        return tuple(sorted({*units, *late}))

    @classmethod
    def exact_from(cls, manifest: Manifest, training: Training, cut: int) -> int:
        """As many blocks as the job says, but none in vain."""
        return exact_cut(manifest, cut, training.exact_blocks)

    @classmethod
    def programs(cls, chain: Chain, training: Training, cut: int) -> list[ProgramSpec]:
        """The prefix as it is, tangents from the cut on, and the last segments forward and in reverse."""
        return chain.mixed(cut, cls.exact_from(chain.manifest, training, cut))

    @classmethod
    def in_passes(cls, training: Training, *, tangents: float, behind: float) -> float:  # noqa: ARG003
        """A pass, one more over what each direction goes through, and the way back through the last blocks."""
        return 1 + TANGENT * tangents + REVERSE * behind

    def gradient(self, batch: Batch, weights: Weights, iteration: int) -> Estimate:
        """The loss, the true gradients of the head and of the last units, and the estimate of the others'."""
        step = self.passes.mixed(batch, weights, self.within(batch, iteration))
        self.moved = step.moved
        report = self.told(batch, step.loss, step.jvp)
        return Estimate(report.loss, self.estimated(report, iteration) | self.own(step.gradients))


class Auto(Mixed):
    """A job's word for the step that each device can hold: exact through as many blocks as its memory allows."""

    @classmethod
    def ways(cls, training: Training, manifest: Manifest) -> list[Training]:
        """Exact through all blocks, or else through fewer; no task says `auto`."""
        depths = range(manifest.model.blocks, -1, -1)
        return [replace(training, estimator="mixed", exact_blocks=depth) for depth in depths]


def _mean(loss: Array, batch: Batch) -> float:
    return float(loss.astype(np.float64).sum() / batch.examples)


def trained(manifest: Manifest, task: Task) -> set[str]:
    """The parameters that a task moves: its units' and the head's."""
    return {parameter.name for parameter in manifest.trained_with(task.units)}


ESTIMATORS = plugins.Registry[type[Estimator]](
    plugins.ESTIMATORS,
    lambda estimator: isinstance(estimator, type) and issubclass(estimator, Estimator),
    {"forward": Forward, "central": Central, "exact": ExactGradient, "mixed": Mixed, "auto": Auto},
)


def kind_of(training: Training) -> type[Estimator]:
    """The estimator that a job names."""
    return ESTIMATORS.find(training.estimator)


def estimator_for(manifest: Manifest, task: Task, passes: Derivatives) -> Estimator:
    """Ready for a task's steps."""
    return kind_of(task.training)(manifest, task, passes)
