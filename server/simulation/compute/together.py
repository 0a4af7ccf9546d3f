"""Clients that run side by side, each in a thread of its own, with their passes computed as one.

A client's code is a device's: it trains step by step and asks its estimator for gradients. Where the estimator asks for
a pass, the client waits until all others of its group have asked too, and all of it is computed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch
from edge_client.estimators.estimator import trained
from edge_client.gradient.estimate import shares
from edge_client.step.passes import Pass
from edge_client.training.round import Computation
from edge_client.wire.protocol import Task
from server.simulation.compute.learner import Bottleneck, Computed, Differentiated, Given, Learner


class Question(NamedTuple):
    """A pass that a client wants computed."""

    weights: Weights
    batch: Batch
    names: frozenset[str] = frozenset()
    """The parameters to differentiate by; without any, a forward pass."""
    per_example: bool = False


class Answering(Protocol):
    """Answers a client's questions."""

    def ask(self, member: int, question: Question, /) -> Any: ...


class Meeting:
    """A meeting where the threads of a group hand in questions, and wait for the answers.

    The thread that holds the meeting computes them, always the same one: each thread that computes would keep memory
    and threads of its own for it.
    """

    def __init__(self, members: int) -> None:
        self._members = set(range(members))
        self._asked: dict[int, Question] = {}
        self._given: dict[int, Any] = {}
        self._failed = False
        self._changed = threading.Condition()

    def ask(self, member: int, question: Question) -> Any:
        """Wait for everybody else's question; give this one's answer."""
        with self._changed:
            self._asked[member] = question
            self._changed.notify_all()
            self._changed.wait_for(lambda: member in self._given or self._failed)
            if member not in self._given:
                raise Dissolved
            return self._given.pop(member)

    def leave(self, member: int, *, failed: bool) -> None:
        """Remove a member that asks no more."""
        with self._changed:
            self._members.discard(member)
            self._failed |= failed
            self._changed.notify_all()

    def hold(self, answer: Callable[[Sequence[Question]], Sequence[Any]]) -> None:
        """Answer, until all members have left or one has failed."""
        while self._wait():
            members = sorted(self._asked)  # an order that does not depend on the threads
            answers = answer([self._asked[member] for member in members])
            with self._changed:
                self._asked.clear()
                self._given.update(zip(members, answers, strict=True))
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait until everybody has asked; False when there is nobody left to ask."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._asked.keys() == self._members)
            return bool(self._members) and not self._failed


class Dissolved(Exception):
    """A meeting ended because another member failed, whose error is the one to tell."""


class SideBySide:
    """Run clients in a thread each, whose passes a learner computes as one."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def run(self, tasks: Sequence[Task], work: Callable[[int, Computation], Given]) -> list[Given]:
        """Give what `work(number, passes)` returns for each task."""
        meeting = Meeting(len(tasks))

        def member(number: int) -> Given:
            failed = True
            try:
                result = work(number, JoinedPasses(self._learner.manifest, tasks[number], meeting, number))
                failed = False
                return result
            finally:
                meeting.leave(number, failed=failed)

        with ThreadPoolExecutor(len(tasks)) as threads:
            try:
                futures = [threads.submit(member, number) for number in range(len(tasks))]
                meeting.hold(lambda questions: _answers(self._learner, questions))
            except BaseException:  # a Ctrl-C too: members would wait forever, and the pool for them
                meeting.leave(-1, failed=True)
                raise
        for error in [future.exception() for future in futures]:
            if error is not None and not isinstance(error, Dissolved):
                raise error
        return [future.result() for future in futures]


def _answers(learner: Learner, questions: Sequence[Question]) -> list[Any]:
    """Questions of a kind as one."""
    answered: dict[int, Any] = {}
    kinds: dict[tuple[bool, bool, tuple[int, ...]], list[int]] = {}
    for number, question in enumerate(questions):
        shape = question.batch.labels.shape
        kinds.setdefault((bool(question.names), question.per_example, shape), []).append(number)
    for (differentiates, per_example, _), members in kinds.items():
        weights = [questions[number].weights for number in members]
        batches = [questions[number].batch for number in members]
        if differentiates:
            names = [questions[number].names for number in members]
            answers: Sequence[Any] = learner.differentiate(weights, batches, names, per_example=per_example)
        else:
            answers = learner.forward(weights, batches)
        answered.update(zip(members, answers, strict=True))
    return [answered[number] for number in range(len(questions))]


class JoinedPasses:
    """Compute the passes of one client's task, as `edge_client.step.passes.Passes` does on a device.

    Directional derivatives are products of the examples' gradients with the directions, from one backward pass for any
    number of directions; they are what a device's forward pass gives, to rounding.
    """

    def __init__(self, manifest: Manifest, task: Task, meeting: Answering, member: int) -> None:
        self._training = task.training
        self._head = manifest.head_names
        self._trained = frozenset(trained(manifest, task))
        self._meeting = meeting
        self._member = member

    def along(
        self, batch: Batch, weights: Weights, directions: Mapping[str, Array], *, scalar_head: bool = False
    ) -> Pass:
        """Derivatives along the units' directions; of the head its exact gradient, or its own derivative."""
        units = {name: values for name, values in directions.items() if name not in self._head}
        own = {name: values for name, values in directions.items() if name in self._head}
        each = self._examples(batch, weights, units.keys() | (own.keys() if scalar_head else self._head))
        jvp, head_jvp = self._products(each, batch, units), self._products(each, batch, own)
        exact = _means(each, batch, () if scalar_head else self._head)
        return Pass(each.loss * batch.weight, jvp, head_jvp, exact, _moved(each, units))

    def exact(self, batch: Batch, weights: Weights) -> Pass:
        """True gradients of the task's units and the head."""
        answer: Differentiated = self._meeting.ask(self._member, Question(weights, batch, self._trained))
        nothing = self._products(answer, batch, {})
        gradients = {name: answer.gradients[name] for name in self._trained}
        return Pass(answer.loss * batch.weight, nothing, nothing, gradients)

    def mixed(self, batch: Batch, weights: Weights, directions: Mapping[str, Array]) -> Pass:
        """Derivatives along the directions; true gradients of the head and of those of the task's units without any."""
        each = self._examples(batch, weights, self._trained)
        jvp, nothing = self._products(each, batch, directions), self._products(each, batch, {})
        exact = _means(each, batch, self._trained - directions.keys())
        return Pass(each.loss * batch.weight, jvp, nothing, exact, _moved(each, directions))

    def losses(self, batch: Batch, weights: Weights) -> Array:
        """[batch], without derivatives."""
        return self._forward(batch, weights).loss * batch.weight

    def logits(self, batch: Batch, weights: Weights) -> Array:
        return self._forward(batch, weights).logits

    def features(self, batch: Batch, weights: Weights) -> Array:
        """Give what the logits are a product of, [batch, features]."""
        features = self._forward(batch, weights).features
        assert features is not None  # they are asked for where the manifest has them
        return features

    def release(self) -> None:
        """Release nothing: no values are kept from one pass to the next."""

    def _forward(self, batch: Batch, weights: Weights) -> Computed:
        return self._meeting.ask(self._member, Question(weights, batch))

    def _examples(self, batch: Batch, weights: Weights, names: Collection[str]) -> Differentiated:
        return self._meeting.ask(self._member, Question(weights, batch, frozenset(names), per_example=True))

    def _products(self, each: Differentiated, batch: Batch, directions: Mapping[str, Array]) -> Array:
        """Products of each example's gradient with its directions, or with those that all share, [K, batch]."""
        count, rows = self._training.directions, len(batch.weight)
        jvp = np.zeros((count, rows), np.float32)
        for name, values in directions.items():
            bottleneck = each.bottlenecks.get(name)
            gradient = (each.gradients[name] if bottleneck is None else bottleneck.gradient).reshape(rows, -1)
            along = values.reshape(count, -1, gradient.shape[1])  # shared: one for all examples
            jvp += np.einsum("kbn,bn->kb", along, gradient, dtype=np.float32)
        return jvp * batch.weight


def _means(each: Differentiated, batch: Batch, names: Iterable[str]) -> Weights:
    """Gradients of the batch's mean loss, from those of its examples."""
    share = shares(batch.weight, len(batch.weight))
    return {name: np.tensordot(share, each.gradients[name], 1) for name in names}


def _moved(each: Differentiated, directions: Mapping[str, Array]) -> Weights:
    """Directions at bottlenecks as such of the factors' weights."""
    return {name: _of_weights(own, directions[name]) for name, own in each.bottlenecks.items() if name in directions}


def _of_weights(bottleneck: Bottleneck, directions: Array) -> Array:
    """Turn directions at a bottleneck [K * batch, tokens, rank] into directions of weights [K * batch, *shape]."""
    entering = bottleneck.entering
    along = directions.reshape(-1, *bottleneck.gradient.shape)
    # Not by BLAS: its threads and those of a round's clients would wait for each other.
    products = np.einsum("kbtr,bti->kbri", along, entering, dtype=np.float32)
    return products.reshape(-1, *products.shape[2:])
