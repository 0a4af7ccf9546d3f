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
"""The least spread, as a share of the features' usual one: a nearly constant feature must not decide."""

Numbers = NDArray[np.float64]


class FeatureRows(NamedTuple):
    """Examples as the task layer has them."""

    features: Numbers
    """[rows, features + 1]: about their mean, of length 1 or so; the last is the bias's."""
    logits: Numbers
    """[rows, classes] of everybody's layer."""
    labels: NDArray[np.int64]


def personal(
    features_of: FeaturesOf,
    examples: Sequence[Example],
    encoder: TextEncoder,
    task: TaskType,
    weights: Weights,
    spec: FeatureSpec,
    seed: int,
) -> Weights:
    """Fit a device's own model: these weights with a task layer for some of its examples, which a seed chooses."""
    features, labels = list[Array](), list[Array]()
    for rows, part in rows_of(features_of, some(examples, MOST, seed), encoder, task, weights):
        if (own := task.row_labels(part)) is None:
            return weights
        features.append(rows)
        labels.append(own)
    return fitted(weights, spec, np.concatenate(features), np.concatenate(labels))


def fitted(weights: Weights, spec: FeatureSpec, features: Array, labels: Array) -> Weights:
    """Fit a task layer for these examples, and return the weights with it."""
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
    """Choose the pull whose fits do best on parts that they have not seen; None where everybody's layer does."""
    count = len(rows.labels)
    if count < PARTS:
        return None
    pulls = np.repeat(PULLS, PARTS)
    left = (np.arange(count) % PARTS)[:, None] == np.arange(len(pulls)) % PARTS
    losses = _losses(_Fits(rows, ~left, pulls).logits(), rows.labels)
    unseen: Numbers = np.where(left, losses, 0.0).sum(0).reshape(len(PULLS), PARTS).sum(1)
    best = int(unseen.argmin())
    return PULLS[best] if unseen[best] < _losses(rows.logits[:, None], rows.labels).sum() else None


def moved(rows: FeatureRows, pull: float) -> Numbers:
    """[classes, features + 1]: what lowers the mean loss of rows and half the pull times its own square the most."""
    fit = _Fits(rows, np.ones((len(rows.labels), 1), np.bool_), np.array([pull]))
    return np.tensordot(fit.made_of[:, 0], rows.features, (0, 0))


class _Fits:
    """Moves for some of the rows each, towards everybody's layer by a pull each, found together.

    A move is a sum of the rows that it is for, and what it does to any row's logits follows from the rows' products
    with one another. A device looks at few rows: all fits together take one small product a step.
    """

    def __init__(self, rows: FeatureRows, seen: NDArray[np.bool_], pulls: Numbers) -> None:
        """Which rows each fit has seen: [rows, fits]."""
        self._rows = rows
        self._products: Numbers = np.tensordot(rows.features, rows.features, (1, 1))
        self._pulls = pulls[:, None]
        self._share = (seen / seen.sum(0))[:, :, None]
        self.made_of = self._found(self._steepest(seen))
        """[rows, fits, classes]: of how much of each row."""

    def _steepest(self, seen: NDArray[np.bool_]) -> Numbers:
        """Bound the curvature from above."""
        alike, which = np.unique(seen, axis=1, return_inverse=True)
        longest = [self._longest(alike[:, number]) for number in range(alike.shape[1])]
        return (0.5 * np.array(longest)[which.reshape(-1)] / seen.sum(0))[:, None] + self._pulls

    def _longest(self, own: NDArray[np.bool_]) -> float:
        return float(np.linalg.eigvalsh(self._products[np.ix_(own, own)])[-1])

    def _found(self, steepest: Numbers) -> Numbers:
        move = ahead = np.zeros((len(self._rows.labels), len(self._pulls), self._rows.logits.shape[1]))
        for step in range(STEPS):  # Nesterov's
            before, move = move, ahead - self._slope(ahead) / steepest
            ahead = move + step / (step + 3) * (move - before)
        return move

    def _slope(self, move: Numbers) -> Numbers:
        errors = _shares(self._moved_by(move))
        errors[np.arange(len(errors)), :, self._rows.labels] -= 1
        return errors * self._share + self._pulls * move

    def _moved_by(self, move: Numbers) -> Numbers:
        across: Numbers = np.tensordot(self._products, move, (1, 0))
        return across + self._rows.logits[:, None]

    def logits(self) -> Numbers:
        """[rows, fits, classes], those of rows too that a fit has not seen."""
        return self._moved_by(self.made_of)


def _spread(about: Numbers) -> Numbers:
    squares = np.asarray(np.mean(np.square(about), 0), np.float64)
    return np.sqrt(np.maximum(squares, LEAST_SPREAD**2 * squares.mean() + np.finfo(np.float32).tiny))


def _shares(logits: Numbers) -> Numbers:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float64)


def _losses(logits: Numbers, labels: NDArray[np.int64]) -> Numbers:
    """Compute the loss of each row by each fit."""
    most = logits.max(-1)
    totals = most + np.log(np.exp(logits - most[..., None]).sum(-1))
    return np.asarray(totals - logits[np.arange(len(labels)), :, labels], np.float64)
