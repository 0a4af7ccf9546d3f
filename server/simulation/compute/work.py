"""Compute clients' parts of a round, a group at a time, and predictions.

A worker holds the model and the population, and is otherwise without a memory: all that decides a result comes with
the call, so that any worker may be asked for any group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from edge_client.arrays import Weights
from edge_client.data.batches import Batches
from edge_client.data.columns import Columns
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.data.sequences import taken
from edge_client.data.templates import Template
from edge_client.estimators.directed import ScalarEstimator
from edge_client.estimators.estimator import Estimate, Estimator
from edge_client.tasks.registry import task_named
from edge_client.tasks.task import Score
from edge_client.training.epoch import Gradients, Judged, evaluate, steps_in
from edge_client.training.round import Computation, LocalData, LocalModel, client_round, personalized
from edge_client.wire.protocol import Task
from edge_client.wire.scalars import encode_report
from server.simulation.compute.learner import ClientRunner, Learner, Model, open_learner
from server.simulation.compute.programs import Programs
from server.simulation.compute.scores import score
from server.simulation.compute.together import SideBySide
from server.simulation.data.dataset import open_dataset
from server.simulation.data.population import Population
from server.simulation.methods.fwdllm import ClosestDirection, GradientSpread
from server.simulation.methods.limits import at_limit
from server.simulation.plan import Plan

ROWS = {"cpu": 32, "cuda": 256}
"""Examples whose passes are computed together: of more, a processor's caches hold too little."""


class ClientPart(NamedTuple):
    """A client's part of a round."""

    client: int
    task: Task


@dataclass(frozen=True)
class Trained:
    """A client's update and report, and the variance of its gradients."""

    update: Weights
    report: dict[str, Any]
    variance: float
    """The variance of its gradients from step to step."""


def rows_together(plan: Plan) -> int:
    """Return how many rows are computed together, by the plan alone: the last bits may depend on it."""
    if plan.runtime is not None:
        return plan.settings.training.batch
    return ROWS[plan.device.partition(":")[0]]


class Worker:
    """One process's share of a simulation."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kind = task_named(plan.task)
        self.population, self.learner, self.clients = _computed(plan)
        self.manifest = self.learner.manifest
        self.tested = _spread(self.population.test, plan.test_examples)
        self._client = lru_cache(plan.settings.per_round)(self.population.client)
        self._taken = lru_cache(plan.settings.per_round)(self._sequences)
        length = plan.settings.training.length
        self._encoder, self._tested_encoder = (
            TextEncoder(self.learner.tokenizer, self.manifest, batch, length)
            for batch in (plan.settings.training.batch, rows_together(plan))
        )

    def train(self, members: Sequence[ClientPart], weights: Weights, last_change: Weights) -> list[Trained]:
        """Mode epoch: all steps of a round."""

        def work(number: int, passes: Computation) -> Trained:
            client, task = members[number]
            estimator = _Watched(self._estimator(task, passes, last_change))
            model = self._model(passes, estimator)
            update = client_round(task, model, weights, self._data(client, task))
            judged = self._judged(client, model, update.personalized) if task.evaluate else None
            report = update.report if judged is None else replace(update.report, **judged.told())
            return Trained(update.tensors, asdict(report), estimator.spread.variance)

        return self.clients.run([member.task for member in members], work)

    def steps(self, members: Sequence[ClientPart]) -> list[int]:
        """Count the steps that each takes in a round."""
        return [steps_in(member.task.training, len(self._batches(*member))) for member in members]

    def report(
        self, members: Sequence[ClientPart], weights: Weights, iteration: int, last_change: Weights
    ) -> list[bytes]:
        """Mode iteration: one step's numbers, as they go over the wire."""

        def work(number: int, passes: Computation) -> bytes:
            client, task = members[number]
            estimator = self._estimator(task, passes, last_change)
            assert isinstance(estimator, ScalarEstimator)  # the settings refuse others
            return encode_report(estimator.report(self._batches(client, task).at(iteration), weights, iteration))

        return self.clients.run([member.task for member in members], work)

    def personal(self, members: Sequence[ClientPart], weights: Weights) -> list[tuple[int, int]]:
        """Mode iteration: each client's own model after a round, by its own test examples; a total and those right."""

        def work(number: int, passes: Computation) -> tuple[int, int]:
            client, task = members[number]
            model = self._model(passes, self._estimator(task, passes, weights))
            own = personalized(task, model, self._data(client, task), weights)
            judged = self._judged(client, model, own)
            return (0, 0) if judged is None else (judged.own.total, self.kind.hits(judged.own))

        return self.clients.run([member.task for member in members], work)

    def score(self, weights: Weights, first: int, last: int) -> Score:
        """Score weights on a part of the test set."""
        return score(self.learner, self._tested_encoder, self.tested[first:last], weights)

    def _model(self, passes: Computation, estimator: Gradients) -> LocalModel:
        return LocalModel(self.manifest, self.kind, passes, estimator)

    def _data(self, client: int, task: Task) -> LocalData:
        """Return a client's training examples: its test examples are scored apart, without the round's model."""
        return LocalData(self._client(client).train, self._batches(client, task))

    def _judged(self, client: int, model: LocalModel, personalized: Weights) -> Judged | None:
        """Score a client's own model on its own test examples."""
        test = self._client(client).test
        if not test:
            return None
        (score,) = evaluate(model.passes.logits, test, self._encoder, self.kind, [personalized])
        return Judged(self.kind, Score(score.total, {}), score)

    def _batches(self, client: int, task: Task) -> Batches:
        return Batches(self._taken(client), self._encoder, self.kind.encode, task.seed)

    def _sequences(self, client: int) -> Sequence[Example]:
        return taken(self._client(client).train, self._encoder, self.plan.settings.training)

    def _estimator(self, task: Task, passes: Computation, last_change: Weights) -> Estimator:
        kind = self.plan.kind.estimator_of(task.training)
        if self.plan.differences == "limit":
            kind = at_limit(kind)
        estimator = kind(self.manifest, task, passes)
        if isinstance(estimator, ClosestDirection):
            estimator.last_change = last_change
        return estimator


class _Watched:
    """An estimator whose gradients' variance is kept."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self.spread = GradientSpread()

    def gradient(self, batch: Any, weights: Weights, iteration: int) -> Estimate:
        estimate = self._estimator.gradient(batch, weights, iteration)
        self.spread.add(estimate)
        return estimate


def _computed(plan: Plan) -> tuple[Population, Model, ClientRunner]:
    """Open a plan's clients, its model or the bundle that stands for it, and what runs clients by that."""
    if plan.runtime is None:
        population, learner = opened(plan)
        return population, learner, SideBySide(learner)
    programs = Programs(Path(plan.model), plan.runtime, plan.settings.training)
    return population_of(plan, programs.template, programs.manifest.model.labels), programs, programs


def opened(plan: Plan) -> tuple[Population, Learner]:
    """Open a plan's clients and model: conversations need the model's template, and task layers the data's labels."""
    if task_named(plan.task).converses:
        learner = learner_of(plan, ())
        return population_of(plan, learner.template), learner
    population = population_of(plan)
    return population, learner_of(plan, population.labels)


def population_of(plan: Plan, template: Template | None = None, labels: Sequence[str] = ()) -> Population:
    """Open a plan's clients; the classes' names are those of the data where none are given."""
    columns = Columns(**plan.columns)
    dataset = open_dataset(
        plan.data, plan.task, columns=columns, by=plan.by, labels=labels, bad_rows=plan.bad_rows, template=template
    )
    return Population(dataset, plan.clients, plan.alpha, plan.seed)


def learner_of(plan: Plan, labels: Sequence[str]) -> Learner:
    """Open a plan's model with its adapter."""
    return open_learner(
        plan.model,
        task=plan.task,
        labels=labels,
        adapter=plan.adapter,
        device=plan.device,
        arithmetic=plan.arithmetic,
        random_weights=plan.random_weights,
        length=plan.settings.training.length,
    )


def _spread(examples: Sequence[Example], count: int) -> list[Example]:
    """Return `count` of the examples, evenly spread; all for 0."""
    total = len(examples)
    if not 0 < count < total:
        return list(examples)
    return [examples[number * total // count] for number in range(count)]
