"""Mode epoch: a client's part of a round, step by step.

A state is never changed, only followed by the next one: whatever interrupts a round, the last state that was given out
is whole, and a run that goes on from it ends with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch, Batches, in_order
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.errors import TrainingError
from edge_client.estimators.estimator import Estimate, trained
from edge_client.tasks.task import Score, TaskType, combined
from edge_client.wire.protocol import Report, Task, Training

from .optimizers import local_step


@dataclass(frozen=True)
class TrainingState:
    """The state of a round that a resumed run needs."""

    weights: Weights
    """The job's weights."""
    optimizer: Weights = field(default_factory=dict[str, Array])
    step: int = 0
    loss: float = 0.0
    """Sum over the steps."""
    examples: int = 0
    """Sum over the steps of the first pass."""


class Gradients(Protocol):
    """Finds a step's gradient, as an estimator does."""

    def gradient(self, batch: Batch, weights: Weights, iteration: int, /) -> Estimate:
        """Compute the loss and the gradient of one step."""
        ...


def steps_in(training: Training, batches: int) -> int:
    """Count the steps of a round."""
    if training.mode == "iteration":
        return max(training.iterations, 1)
    return training.iterations or training.epochs * batches


def train(
    task: Task, manifest: Manifest, estimator: Gradients, batches: Batches, state: TrainingState
) -> Iterator[TrainingState]:
    """Yield the states after each step that is left of the round."""
    rates = _rates(task.training, manifest)
    for step in range(state.step, steps_in(task.training, len(batches))):
        batch = batches.at(step)
        state = _next(task.training, estimator, batch, state, rates)
        if step < len(batches):  # the first pass
            state = replace(state, examples=state.examples + batch.examples)
        yield state


def _next(
    training: Training, estimator: Gradients, batch: Batch, state: TrainingState, rates: Mapping[str, float]
) -> TrainingState:
    estimate = estimator.gradient(batch, state.weights, state.step)
    check_finite(estimate.loss, estimate.gradients, state.step)
    weights, optimizer = dict(state.weights), dict(state.optimizer)
    for name, gradient in estimate.gradients.items():
        local_step(weights, {name: gradient}, optimizer, training, rates[name])
    return replace(state, weights=weights, optimizer=optimizer, step=state.step + 1, loss=state.loss + estimate.loss)


def _rates(training: Training, manifest: Manifest) -> dict[str, float]:
    """Choose each parameter's rate: the units', the head's, and the smaller one before the layer that gives the logits.

    The head's rate is found from what reaches that last layer. A layer before it, such as DistilBERT's, feeds a layer
    that learns fast, so that at the same rate its steps soon are too long, and the loss runs away.
    """
    units = training.learning_rate
    head = training.head_learning_rate or units
    rates = {parameter.name: units for parameter in manifest.trained}
    return rates | dict.fromkeys(manifest.head_names, head) | dict.fromkeys(manifest.before_logits, min(units, head))


def check_finite(loss: float, values: Weights, step: int) -> None:
    if not math.isfinite(loss) or not all(np.isfinite(value).all() for value in values.values()):
        what = f"step {step} gave a loss or gradient that is not finite (loss {loss})"
        raise TrainingError(f"{what}: lower the learning rate")


def update(task: Task, manifest: Manifest, state: TrainingState) -> Weights:
    """Take what the server is sent: the parameters that the task trains."""
    return {name: state.weights[name] for name in sorted(trained(manifest, task))}


def report(state: TrainingState, *, judged: Judged | None = None, measured: int = 0) -> Report:
    """Tell the server what came of a round's steps; seconds and memory are added by whoever measures them."""
    return Report(
        examples=state.examples,
        steps=state.step,
        loss=state.loss / state.step,
        measured=measured,
        **({} if judged is None else judged.told()),
    )


# --- evaluation ------------------------------------------------------------------------------------------------------


Logits = Callable[[Batch, Weights], Any]
"""Logits of a batch with these weights."""


class Judged(NamedTuple):
    """The round's model and a device's own, by examples that were held back."""

    task: TaskType
    before: Score
    own: Score

    def told(self) -> dict[str, Any]:
        """Return the fields of a report for these scores."""
        return {
            "held_back": self.before.total,
            "right_global": self.task.hits(self.before),
            "right_personal": self.task.hits(self.own),
            "sums_global": self._others(self.before),
            "sums_personal": self._others(self.own),
        }

    def _others(self, score: Score) -> dict[str, float]:
        return {name: float(value) for name, value in score.sums.items() if name != self.task.counted}


def evaluate(
    logits_of: Logits, examples: Sequence[Example], encoder: TextEncoder, task: TaskType, weights: Sequence[Weights]
) -> list[Score]:
    """Score the predictions on these examples with each of some weights.

    A prediction is an example's class, a question's answer, or for a language model the next token.
    """
    scores: list[list[Score]] = [[] for _ in weights]
    for part in in_order(examples, encoder, task.encode):
        for values, of_weights in zip(weights, scores, strict=True):
            logits = logits_of(part.batch, values)[: len(part.examples)]  # without rows that only fill
            of_weights.append(task.score(logits, part))
    return [combined(of_weights) for of_weights in scores]
