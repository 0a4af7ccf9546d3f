"""A device's own task layer: that of everybody, moved by its own examples as far as these agree on it.

Devices differ most in which answers are usual with them, and the task layer alone says that. It is fitted to features
of the model as it stands, which takes one plain pass and no rate: the loss is convex, so that its curvature tells the
step, and how far to trust a few examples is decided by parts of them that the fit has not seen. Where no fit does
better on those than everybody's layer, that one stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import FeatureSpec
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.tasks.task import TaskType

from .features import FeaturesOf, rows_of, some

MOST = 256
"""Examples that are looked at."""
PULLS = (1.0, 0.1, 0.01, 0.001)
"""Towards everybody's layer, of which one is chosen; features have a length of about 1."""
PARTS = 5
"""Into which examples are divided to choose."""
STEPS = 100
LEAST_SPREAD = 0.1
"""Of the features' usual spread: what hardly varies must not decide."""

Numbers = NDArray[np.float64]


class FeatureRows(NamedTuple):
    """Examples as the task layer has them."""

    features: Numbers
    """[rows, features + 1]: about their mean, of length 1 or so; the last is the bias's."""
    logits: Numbers
    """[rows, classes] of everybody's layer."""
    labels: NDArray[np.int64]

    def of(self, chosen: NDArray[np.bool_]) -> FeatureRows:
        return FeatureRows(self.features[chosen], self.logits[chosen], self.labels[chosen])

    def moved_by(self, move: Numbers) -> Numbers:
        """The logits of a layer that differs from everybody's by a move."""
        return np.tensordot(self.features, move, (1, 1)) + self.logits


def personal(
    features_of: FeaturesOf,
    examples: Sequence[Example],
    encoder: TextEncoder,
    task: TaskType,
    weights: Weights,
    spec: FeatureSpec,
    seed: int,
) -> Weights:
    """A device's own model: these weights with a task layer for some of its examples, which a seed chooses."""
    features, labels = list[Array](), list[Array]()
    for rows, part in rows_of(features_of, some(examples, MOST, seed), encoder, task, weights):
        if (own := task.row_labels(part)) is None:
            return weights
        features.append(rows)
        labels.append(own)
    return fitted(weights, spec, np.concatenate(features), np.concatenate(labels))


def fitted(weights: Weights, spec: FeatureSpec, features: Array, labels: Array) -> Weights:
    """The weights with a task layer for these examples."""
    weight = weights[spec.weight].astype(np.float64)
    bias = weights[spec.bias].astype(np.float64) if spec.bias else np.zeros(len(weight))
    values = features.astype(np.float64)
    mean = values.mean(0) if spec.bias else np.zeros(values.shape[1])
    scale = _spread(values - mean) * np.sqrt(values.shape[1])
    column = np.full((len(values), 1), 1.0 if spec.bias else 0.0)
    rows = FeatureRows(
        np.hstack([(values - mean) / scale, column]), values @ weight.T + bias, np.asarray(labels, np.int64)
    )
    pull = chosen_pull(rows)
    if pull is None:
        return weights
    move = moved(rows, pull)
    slope = move[:, :-1] / scale
    own = {spec.weight: (weight + slope).astype(np.float32)}
    if spec.bias:
        own[spec.bias] = (bias + move[:, -1] - slope @ mean).astype(np.float32)
    return {**weights, **own}


def chosen_pull(rows: FeatureRows) -> float | None:
    """The pull whose fits do best on parts that they have not seen; None where everybody's layer does."""
    count = len(rows.labels)
    if count < PARTS:
        return None
    part = np.arange(count) % PARTS
    losses: dict[float | None, float] = {None: _loss(rows.logits, rows.labels)}
    for pull in PULLS:
        unseen = 0.0
        for number in range(PARTS):
            seen, left = rows.of(part != number), rows.of(part == number)
            unseen += _loss(left.moved_by(moved(seen, pull)), left.labels)
        losses[pull] = unseen
    return min(losses, key=lambda pull: losses[pull])


def moved(rows: FeatureRows, pull: float) -> Numbers:
    """[classes, features + 1]: what lowers the mean loss of rows and half the pull times its own square the most."""
    shape = rows.logits.shape[1], rows.features.shape[1]
    steepest = 0.5 * float(np.linalg.norm(rows.features, 2)) ** 2 / len(rows.labels) + pull  # no curvature is larger
    move, ahead = np.zeros(shape), np.zeros(shape)
    for step in range(STEPS):  # Nesterov's
        before, move = move, ahead - _slope(rows, ahead, pull) / steepest
        ahead = move + step / (step + 3) * (move - before)
    return move


def _slope(rows: FeatureRows, move: Numbers, pull: float) -> Numbers:
    errors = _shares(rows.moved_by(move))
    errors[np.arange(len(errors)), rows.labels] -= 1
    return np.tensordot(errors, rows.features, (0, 0)) / len(errors) + pull * move


def _spread(about: Numbers) -> Numbers:
    squares = np.asarray(np.mean(np.square(about), 0), np.float64)
    return np.sqrt(np.maximum(squares, LEAST_SPREAD**2 * squares.mean() + np.finfo(np.float32).tiny))


def _shares(logits: Numbers) -> Numbers:
    return np.exp(logits - _totals(logits)[:, None])


def _loss(logits: Numbers, labels: NDArray[np.int64]) -> float:
    """The loss, summed over the rows."""
    return float((_totals(logits) - logits[np.arange(len(labels)), labels]).sum())


def _totals(logits: Numbers) -> Numbers:
    """The logarithm of each row's sum of powers."""
    return np.asarray(np.logaddexp.reduce(logits, axis=1), np.float64)
