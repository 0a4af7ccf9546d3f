"""Measure how near a step's estimate of the gradient comes to the true one, unit by unit.

Two things keep an estimate away from the gradient over all clients' examples: its directions are drawn by chance, and
so are its examples. The cosine with the true gradient of the same examples shows the first alone, that with the
gradient over the whole data both.

The estimators are the devices' own. What they ask of a model is known beforehand: each example's gradient, computed
once for a batch and a set of weights, gives the derivatives along any number of directions as products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch, Batches, in_order
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.estimators.registry import kind_of
from edge_client.gradient.estimate import shares
from edge_client.tasks.registry import task_named
from edge_client.wire.protocol import Training
from server.errors import SimulationError
from server.policy.assignment import RoundSlot
from server.simulation.compute.learner import Bottleneck, Differentiated, Learner
from server.simulation.compute.together import JoinedPasses, Question
from server.simulation.compute.work import rows_together
from server.simulation.data.population import Population, sampled
from server.simulation.noise.choice import Candidate, expected_noise, noise_at_bottleneck
from server.simulation.noise.rows import NoiseRow, NoiseSample, cosine, row
from server.simulation.plan import Plan
from server.simulation.run.tasks import task_of

Vector = NDArray[np.float64]
Vectors = dict[int, Vector]
"""A gradient: each unit's part, flat, by the unit's number."""
Tell = Callable[[float, str], None]
"""Hears which share of the work is done, and what comes next."""

WHOLE_BATCH = 32
"""Examples of a batch for the gradient over the data."""


def measure(
    plan: Plan,
    learner: Learner,
    population: Population,
    choices: Sequence[Candidate],
    *,
    weights: Weights,
    examples: int,
    repeats: int,
    tell: Tell = lambda _share, _what: None,
) -> Iterator[NoiseRow]:
    """Yield a row for each choice, number of holders and unit."""
    if not learner.manifest.units:
        raise SimulationError("this adapter has no units, so there is nothing to estimate; choose another --peft")
    choices = [choice.settled(learner.manifest) for choice in choices if choice.possible(learner.manifest)]
    if not choices:
        raise SimulationError("directions at bottlenecks are each example's own; leave --shared out")
    steps = _Steps(plan, learner, population, weights)
    tell(0, "the gradient over the data")
    whole = steps.whole(population.sample(examples, plan.seed))
    batches = list(dict.fromkeys(choice.training.batch for choice in choices))
    for number, batch in enumerate(batches):
        fitting = [choice for choice in choices if choice.training.batch == batch]
        gathered: dict[tuple[int, int, int], list[NoiseSample]] = {}
        for repeat in range(repeats):
            tell((number + repeat / repeats) / len(batches), f"batch {batch}, repeat {repeat + 1} of {repeats}")
            for key, sample in _samples(steps, fitting, batch, repeat, whole):
                gathered.setdefault(key, []).append(sample)
        for (at, holders, unit), samples in gathered.items():
            yield row(learner.manifest, fitting[at], holders, unit, samples)


def _samples(
    steps: _Steps, choices: Sequence[Candidate], batch: int, repeat: int, whole: Vectors
) -> Iterator[tuple[tuple[int, int, int], NoiseSample]]:
    """Average the first clients of each choice, number of holders and unit, beside the true mean."""
    draws = steps.draws(repeat, batch, max(holders for choice in choices for holders in choice.holders))
    for at, choice in enumerate(choices):
        estimates = [steps.estimate(choice, repeat, draw) for draw in draws[: max(choice.holders)]]
        for holders in choice.holders:
            counts = np.array([draw.batch.examples for draw in draws[:holders]], np.float64)
            share = counts / counts.sum()
            for unit, expected in whole.items():
                estimate = share @ np.stack([one[unit] for one in estimates[:holders]])
                own = [steps.rows(choice.training, draw, unit) for draw in draws[:holders]]
                parts = [part * rows for part, rows in zip(share, own, strict=True)]
                noises = [steps.noise(choice.training, draw, unit, q) for draw, q in zip(draws, share, strict=False)]
                yield (at, holders, unit), _sample(noises, estimate, parts, expected)


def _sample(noises: Sequence[float | None], estimate: Vector, parts: Sequence[Vector], whole: Vector) -> NoiseSample:
    """Compare an estimate with the truth; each holder's parts have directions of their own, and noise."""
    truth = np.sum([rows.sum(axis=0) for rows in parts], axis=0)
    square, against = float(truth @ truth), cosine(truth, whole)
    if not square:
        return NoiseSample(None, cosine(estimate, whole), against, None, None, None)
    return NoiseSample(
        batch=cosine(estimate, truth),
        data=cosine(estimate, whole),
        exact=against,
        error=float(np.sum((estimate - truth) ** 2)) / square,
        expected=None if None in noises else sum(filter(None, noises)) / square,
        agreement=square / sum(float(np.sum(rows**2)) for rows in parts),
    )


class Draw(NamedTuple):
    """A client's batch, and the gradient of each of its examples."""

    place: int
    batch: Batch
    by_example: Differentiated


class _Steps:
    """Clients' steps from the same weights."""

    def __init__(self, plan: Plan, learner: Learner, population: Population, weights: Weights) -> None:
        self._plan = plan
        self._kind = task_named(plan.task)
        self._learner = learner
        self._manifest: Manifest = learner.manifest
        self._population = population
        self._weights = weights
        self._names = [[parameter.name for parameter in unit.parameters] for unit in self._manifest.units]
        self._head = [parameter.name for parameter in self._manifest.head]

    def whole(self, examples: Sequence[Example]) -> Vectors:
        """Compute the gradient of the mean loss over these examples."""
        total: Vectors = {number: np.zeros(unit.size) for number, unit in enumerate(self._manifest.units)}
        encoder, together = self._encoder(WHOLE_BATCH), rows_together(self._plan)
        for start in range(0, len(examples), together):
            batches = [part.batch for part in in_order(examples[start : start + together], encoder, self._kind.encode)]
            for batch, mean in zip(batches, self._differentiate(batches, per_example=False), strict=True):
                for number, vector in self._vectors(mean.gradients, total).items():
                    total[number] += vector * batch.examples / len(examples)
        return total

    def draws(self, repeat: int, batch: int, count: int) -> list[Draw]:
        """Clients' batches, as in the first step of a round."""
        encoder, batches = self._encoder(batch), list[Batch]()
        for place, client in enumerate(sampled(self._plan.seed, repeat + 1, self._population.clients, count)):
            task = task_of(self._plan.settings, self._manifest, repeat + 1, RoundSlot(place, ()))
            examples = self._population.client(client).train
            batches.append(Batches(examples, encoder, self._kind.encode, task.seed).at(0))
        differentiated = self._differentiate(batches, per_example=True)
        return [Draw(place, *pair) for place, pair in enumerate(zip(batches, differentiated, strict=True))]

    def estimate(self, choice: Candidate, repeat: int, draw: Draw) -> Vectors:
        """Estimate all units: group by group, as if several clients had the same batch."""
        settings = self._plan.settings.model_copy(update={"training": choice.training})
        estimates: Vectors = {}
        for units in choice.groups(len(self._manifest.units)):
            task = task_of(settings, self._manifest, repeat + 1, RoundSlot(draw.place, units))
            passes = JoinedPasses(self._manifest, task, _Known(self._learner, draw.by_example), draw.place)
            estimator = kind_of(task.training)(self._manifest, task, passes)
            estimates |= self._vectors(estimator.gradient(draw.batch, self._weights, 0).gradients, units)
        return estimates

    def rows(self, training: Training, draw: Draw, unit: int) -> Vector:
        """List what has directions of its own: each example, or all of them together."""
        rows = self.examples(draw, unit)
        return rows if training.per_example else rows.sum(axis=0, keepdims=True)

    def noise(self, training: Training, draw: Draw, unit: int, share: float) -> float | None:
        """Compute the noise that theory expects of a holder with this share, where it can tell."""
        bottleneck = draw.by_example.bottlenecks.get(self._names[unit][0])
        if bottleneck is None or training.estimator != "forward":
            return expected_noise(training, share * self.rows(training, draw, unit))
        weight = share * shares(draw.batch.weight, len(draw.batch.weight)).astype(np.float64)
        entering = bottleneck.entering.astype(np.float64)
        if self._manifest.units[unit].token is None:
            entering = entering * draw.batch.tokens["attention_mask"][..., None]
        return noise_at_bottleneck(training, entering, weight[:, None, None] * bottleneck.gradient)

    def examples(self, draw: Draw, unit: int) -> Vector:
        """Give what each example adds to the true gradient of its batch, [batch, weights]."""
        share = shares(draw.batch.weight, len(draw.batch.weight)).astype(np.float64)
        gradients = [draw.by_example.gradients[name].reshape(len(share), -1) for name in self._names[unit]]
        return share[:, None] * np.concatenate(gradients, axis=1)

    def _differentiate(self, batches: Sequence[Batch], *, per_example: bool) -> Sequence[Differentiated]:
        names = sorted([name for names in self._names for name in names] + (self._head if per_example else []))
        count = len(batches)
        return self._learner.differentiate([self._weights] * count, batches, [names] * count, per_example=per_example)

    def _vectors(self, gradients: Weights, units: Iterable[int]) -> Vectors:
        return {
            unit: np.concatenate([gradients[name].reshape(-1) for name in self._names[unit]]).astype(np.float64)
            for unit in units
        }

    def _encoder(self, batch: int) -> TextEncoder:
        return TextEncoder(self._learner.tokenizer, self._manifest, batch, self._plan.settings.training.length)


class _Mean(NamedTuple):
    """A batch's mean gradients, as `Differentiated` has them."""

    loss: NDArray[Any]
    logits: NDArray[Any]
    gradients: Weights
    bottlenecks: Mapping[str, Bottleneck]


class _Known:
    """Answers an estimator from the examples' gradients; what the losses are elsewhere is computed."""

    def __init__(self, learner: Learner, by_example: Differentiated) -> None:
        self._learner = learner
        self._by_example = by_example

    def ask(self, member: int, question: Question) -> Any:  # noqa: ARG002 -- there is one
        if not question.names:
            return self._learner.forward([question.weights], [question.batch])[0]
        if question.per_example:
            return self._by_example
        share = shares(question.batch.weight, len(question.batch.weight))
        gradients = {name: np.tensordot(share, self._by_example.gradients[name], 1) for name in question.names}
        return _Mean(self._by_example.loss, self._by_example.logits, gradients, {})
