"""A client's round as a function of what it is given: weights and local examples become an update.

Nothing here knows a network, a disk, a clock or a thread, so that anything can host a round: the device client
(`edge_client.rounds`), the simulator, a notebook, another framework's client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch, Batches
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.data.sequences import taken
from edge_client.estimators.estimator import Derivatives
from edge_client.secagg.adding import changes
from edge_client.tasks.task import TaskType
from edge_client.wire.clipping import clipped, silent
from edge_client.wire.protocol import Report, Task, Training

from .epoch import Gradients, Judged, TrainingState, evaluate, report, train, update
from .features import NOTHING, Moments, measured
from .personal import personal


class Computation(Derivatives, Protocol):
    """Computes a round's passes: on a device by a bundle's programs (`edge_client.step.passes.Passes`)."""

    def logits(self, batch: Batch, weights: Weights, /) -> Array:
        """Give logits, [batch, classes] or [batch, length, vocabulary]."""
        ...

    def features(self, batch: Batch, weights: Weights, /) -> Array:
        """Give what the logits are a product of, [batch, features]."""
        ...

    def release(self) -> None:
        """Give back what the steps' programs hold, before others run."""
        ...


@dataclass(frozen=True)
class LocalModel:
    """The model as one client trains it: what it is made of, and how a step's gradient is found."""

    manifest: Manifest
    kind: TaskType
    passes: Computation
    estimator: Gradients


@dataclass(frozen=True)
class LocalData:
    """A client's own examples."""

    examples: Sequence[Example]
    batches: Batches
    """The examples as a round trains on them."""
    held_back: Sequence[Example] = ()
    """The examples for evaluation."""


class Update(NamedTuple):
    """The result of a client's round. The first two are sent to the server; the rest stays with the client."""

    tensors: Weights
    """The trained parameters, or by how much they changed where the task goes into a secure sum; feature moments."""
    report: Report
    """The report, without seconds and memory, which a host measures."""
    personalized: Weights
    """The client's own model."""
    evaluation: Judged | None = None
    """The round's model and the client's own on held-back examples, where the task asks for it and there are some."""


def batches_of(
    examples: Sequence[Example], encoder: TextEncoder, kind: TaskType, training: Training, seed: int
) -> Batches:
    """Draw a round's batches; a task's seed always gives the same."""
    return Batches(taken(examples, encoder, training), encoder, kind.encode, seed)


def client_round(
    task: Task,
    model: LocalModel,
    weights: Weights,
    data: LocalData,
    *,
    resumed: TrainingState | None = None,
    on_step: Callable[[TrainingState], object] = lambda _: None,
) -> Update:
    """Run a client's part of a round in mode epoch.

    Trains the task's units and the head on local batches; where the task asks for it, fits a personalized model,
    evaluates both on held-back examples, measures feature moments, clips the update for differential privacy, and turns
    it into what a secure sum takes.

    Args:
        task: the client's assignment: units, seed, hyperparameters, and what is asked of it.
        model: computes losses and gradients.
        weights: the round's global weights, by parameter name.
        data: the client's own examples.
        resumed: where an interrupted run of this task stood.
        on_step: is given each state as it is reached; every state can be resumed from.
    """
    state = resumed or TrainingState(weights)
    for following in train(task, model.manifest, model.estimator, data.batches, state):
        state = following
        on_step(state)
    personalized = fitted(task, model, data, state.weights) if task.evaluate else state.weights
    evaluation = evaluated(task, model, data, weights, personalized)
    moments = _moments(task, model, data, weights)
    tensors = update(task, model.manifest, state)
    told = report(state, judged=evaluation, measured=moments.rows)
    if task.clip is not None:
        tensors, told = clipped(weights, tensors, task.clip), silent(told)
    if task.sum is not None:
        tensors = changes(model.manifest, task.sum.units, tensors, weights)
    return Update(tensors | moments.tensors, told, personalized, evaluation)


def personalized(task: Task, model: LocalModel, data: LocalData, weights: Weights) -> Weights:
    """Adapt a round's result to one client: fit its task layer, or train alone where there is no layer to fit."""
    if not model.kind.has_classes or model.manifest.features is None:
        *_, state = train(task, model.manifest, model.estimator, data.batches, TrainingState(weights))
        weights = state.weights
    return fitted(task, model, data, weights)


def fitted(task: Task, model: LocalModel, data: LocalData, weights: Weights) -> Weights:
    """Fit the task layer to the client's examples, where the model has one that can be fitted."""
    spec = model.manifest.features
    if spec is None:
        return weights
    model.passes.release()
    return personal(model.passes.features, data.examples, data.batches.encoder, model.kind, weights, spec, task.seed)


def evaluated(task: Task, model: LocalModel, data: LocalData, before: Weights, own: Weights) -> Judged | None:
    """Score the round's model and the client's own on held-back examples, where the task asks for it."""
    if not task.evaluate or not data.held_back:
        return None
    model.passes.release()
    encoder = data.batches.encoder
    return Judged(model.kind, *evaluate(model.passes.logits, data.held_back, encoder, model.kind, [before, own]))


def _moments(task: Task, model: LocalModel, data: LocalData, weights: Weights) -> Moments:
    """Measure the moments of the examples' features by the round's weights, where the task asks for them."""
    if not task.measure or model.manifest.features is None:
        return NOTHING
    model.passes.release()
    return measured(model.passes.features, data.examples, data.batches.encoder, model.kind, weights, task.seed)
