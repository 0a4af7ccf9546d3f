"""Take the head's step from measured features: an exact gradient needs no rate where the features' moments are known.

The head's last layer is a product with features, so its raw mean gradient is of little use: most of it is about
the features' mean, which belongs to the bias, and about the few directions in which all features vary. Taken about the
mean, and through the inverse of the covariance, every direction is stepped in alike: the same share of the way for
features of any size, for one device and for a hundred. It is a step of Newton's method, with the curvature of a class's
errors in place of their common bound of a half: of 77 classes each has a 77th of the rows, so that by the bound a step
would be a 38th of what it should be.

Where a class has few rows, directions in which features hardly vary tell more of these rows than of the class. So the
fewer rows a class has, the more is added to the variance of all directions.

Features change while the units train: by moments of the first round alone the head's steps become too long where the
features have grown, and its loss runs away. So a few clients measure again in each round.

The clients' own steps are short (`server.jobs.completion`): what counts of them is the gradients' sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import FeatureSpec
from edge_client.bundle.names import FEATURES
from edge_client.training.features import MEAN, PRODUCTS, Moments
from edge_client.wire.protocol import Training
from server.aggregation.rule import FEWEST, Numbers

COUNT = FEATURES + "count"
SHARES = FEATURES + "shares"
"""The share of each class among the rows of the first round."""
SHARE_OF_STEP = 0.1
"""The share of the way to the features' best fit for each step that clients took: their batches are few and noisy."""
MOST_OF_WAY = 1.0
"""The most of the way, however many steps clients took."""
BIAS_SHARE_OF_STEP = 0.5
"""The same share for the bias, in which all examples have a part."""
BIAS_MOST_OF_WAY = 2.0
"""The most of the bias's way: Newton's whole step, as the errors' curvature is at most a half."""
CURVATURE = 0.5
"""The bound of the errors' curvature, for any number of classes."""
RIDGE, MOST_RIDGE = 0.3, 10.0
"""The share of a feature's variance that is added to each direction's, lest constant ones count like others."""
ROWS_A_FEATURE = 3.0
"""Rows of a class for each feature that make the ridge 1; with fewer rows it grows."""
LEAST_SPREAD = 0.1
"""The least spread, as a share of the features' usual size: a nearly constant feature must not decide the step."""
AGAIN = 12
"""The number of a round's clients for one that measures, after the first round: features change as the units train."""
MOST_ASKED = 64
"""The most clients of a round that measure features: thousands of rows are enough."""
KEPT = 0.9
"""The weight of earlier rows in each round: so much of them stays up to date."""
ROUNDING = 1e-3
"""The share of a feature's variance by which products may fall short of a covariance."""
MOST_TIMES_USUAL = 100.0
"""The most times that a device's features may exceed those of the exporter's sentences."""


class LocalSteps(NamedTuple):
    """The local work of a round's clients, which sets the length of the head's step."""

    training: Training
    number: float
    """The mean number of steps of a client."""
    rows: int = 0
    """The rows of all clients together, where outputs are classes; 0 elsewhere."""

    @property
    def mean_of(self) -> float:
        """The factor that turns a sum of steps into a mean gradient."""
        return 1 / (self.number * (self.training.head_learning_rate or self.training.learning_rate))


def is_asked(version: int, slot: int, slots: int) -> bool:
    """Tell whether a client measures in a round that starts from a version.

    Three measure at least, so that each report can be compared; slots take turns, so that none measures always.

    Args:
        version: the one that the round starts from.
        slot: the client's, counted among the slots that have a client.
        slots: how many have one.
    """
    if version == 0:
        return slot < MOST_ASKED
    asked = min(max(FEWEST, slots // AGAIN), MOST_ASKED)
    return (slot - version * asked) % slots < asked


def joined(state: Weights, told: Iterable[Moments]) -> Weights:
    """Pool the moments of all rows ever reported, the newest above all, as the server's state keeps them."""
    new = [(float(one.rows), one) for one in told if one.rows]
    if not new:
        return {name: state[name] for name in (COUNT, MEAN, PRODUCTS) if name in state}
    known = [*kept(state), *new]
    total = sum(rows for rows, _ in known)
    shares = [rows / total for rows, _ in known]
    means = [one.mean.astype(np.float64) for _, one in known]
    mean = sum((share * own for share, own in zip(shares, means, strict=True)), np.zeros(len(means[0])))
    products = np.zeros(len(new[0][1].products))
    for share, (_, one), own in zip(shares, known, means, strict=True):
        products += share * (one.products + _packed(own - mean, len(products)))
    return {COUNT: np.array([total], np.float32), MEAN: mean.astype(np.float32), PRODUCTS: products.astype(np.float32)}


def kept(state: Weights) -> list[tuple[float, Moments]]:
    """Return the moments of earlier rounds with the rows that they count for; none in the first."""
    if COUNT not in state:
        return []
    rows = float(state[COUNT][0])
    return [(KEPT * rows, Moments(round(rows), state[MEAN], state[PRODUCTS]))]


def _packed(apart: Numbers, size: int) -> Numbers:
    """Pack the products of a mean's difference from the overall mean as moments have them."""
    if size == len(apart):
        return np.square(apart)
    return np.outer(apart, apart)[np.triu_indices(len(apart))]


def shares_of(change: Weights, spec: FeatureSpec, steps: LocalSteps) -> Weights:
    """Find classes' shares of the rows by the first round's step of the bias: the head has them all likely alike yet.

    Returns:
        what the server's state keeps of it; nothing where the layer has no bias.
    """
    if spec.bias not in change:
        return {}
    bias = steps.mean_of * change[spec.bias]
    return {SHARES: np.clip(1 / len(bias) + bias, 0, 1).astype(np.float32)}


def stepped(change: Weights, state: Weights, spec: FeatureSpec, steps: LocalSteps) -> Weights:
    """Replace the last layer's part of the clients' mean change by its step through the features' moments."""
    if COUNT not in state or spec.weight not in change:
        return change
    mean_of, rows = steps.mean_of, steps.rows
    way, bias_way = (
        min(SHARE_OF_STEP * steps.number, MOST_OF_WAY),
        min(BIAS_SHARE_OF_STEP * steps.number, BIAS_MOST_OF_WAY),
    )
    mean = state[MEAN].astype(np.float64) if spec.bias else np.zeros(len(state[MEAN]))
    weight = mean_of * change[spec.weight].astype(np.float64)
    bias = mean_of * change[spec.bias].astype(np.float64) if spec.bias else np.zeros(len(weight))
    about = state[PRODUCTS] if spec.bias else state[PRODUCTS] + _packed(state[MEAN], len(state[PRODUCTS]))
    ridge = _ridge(rows, weight.shape) if rows else RIDGE
    curvature = _curvature(state, bias) if rows else CURVATURE
    moved = way * CURVATURE / curvature * solved(weight - np.outer(bias, mean), about, mean, ridge)
    after = {spec.weight: moved.astype(np.float32)}
    if spec.bias:
        after[spec.bias] = (bias_way * bias - moved @ mean).astype(np.float32)
    return {**change, **after}


def _ridge(rows: int, shape: tuple[int, ...]) -> float:
    """Compute the ridge of a layer [classes, features] from the rows that a class has in the mean."""
    classes, width = shape
    return float(np.clip(width * classes / (ROWS_A_FEATURE * rows), RIDGE, MOST_RIDGE))


def _curvature(state: Weights, bias: Numbers) -> Any:
    """Bound the curvature of each class's errors [classes, 1]: a class with a share s of the rows has at most s.

    A class that is much more frequent in a round than before has at least what its bias says.
    """
    if SHARES not in state:  # there is no bias, or the first round was of an earlier version
        return CURVATURE
    shares = np.maximum(state[SHARES].astype(np.float64), bias)
    return np.clip(shares, 1 / len(shares), CURVATURE)[:, None]


def whitened(weight: Numbers, bias: Numbers | None, state: Weights) -> Numbers:
    """Whiten changes of rows of the last layer: about the features' mean, in units of their spread in every direction.

    The mean's part says how many examples a class has. The product of two changes without it is how much a step by the
    one lowers the other's loss.
    """
    mean, products = state[MEAN].astype(np.float64), state[PRODUCTS]
    if bias is not None:
        return _turned(weight - np.outer(bias, mean), products, mean, 0.5)
    turned = _turned(np.vstack([weight, mean]), products + _packed(mean, len(products)), 0 * mean, 0.5)
    rows, along = turned[:-1], turned[-1] / max(float(np.sqrt(turned[-1] @ turned[-1])), np.finfo(np.float64).tiny)
    return rows - np.outer(rows @ along, along)


CLEAR_MEAN = 4.0
"""The squared length of the features' mean, in units of their spread, from which a change along it says how likely the
classes are: the rest of the change then hides little of it."""


def bias_by_weights(weight: Numbers, mean: Array, products: Array) -> Numbers | None:
    """Compute by how much a change [classes, features] moves each class as one of its bias would.

    It is the change along the features' mean, each feature in units of its spread; None where the mean is short.
    """
    about = mean.astype(np.float64)
    along = about / np.square(spread_of(products, about))
    square = float(about @ along)
    return weight @ along / square if square > CLEAR_MEAN else None


def pulls(weight: Numbers, bias: Numbers | None, state: Weights) -> Numbers:
    """Compute how far changes of rows of the last layer move a class whatever a text says: what `whitened` drops."""
    if bias is not None:
        return bias
    mean = state[MEAN].astype(np.float64)
    (along,) = solved(mean[None], state[PRODUCTS] + _packed(mean, len(state[PRODUCTS])), 0 * mean)
    return weight @ along / max(float(mean @ along), np.finfo(np.float64).tiny)


def solved(rows: Numbers, products: Array, mean: Numbers, ridge: float = RIDGE) -> Numbers:
    """Multiply rows by the inverse of the features' covariance, in units of each feature's own spread."""
    return _turned(rows, products, mean, 1.0, ridge) / spread_of(products, mean)


def freedom_of(state: Weights) -> float:
    """Compute the whitened features' effective number of directions."""
    products, mean = state[PRODUCTS], state[MEAN].astype(np.float64)
    values = _correlation(products, mean)[0]
    left = values / (values + RIDGE)
    return float(left.sum() ** 2 / max(float((left**2).sum()), np.finfo(np.float64).tiny))


def _turned(rows: Numbers, products: Array, mean: Numbers, power: float, ridge: float = RIDGE) -> Numbers:
    """Multiply rows in units of each feature's spread by a power of the inverse of the features' eased correlation."""
    values, vectors = _correlation(products, mean)
    eased = (values + ridge) ** power
    rows = rows / spread_of(products, mean)
    return rows / eased if vectors is None else rows @ ((vectors / eased) @ vectors.T)


def _correlation(products: Array, mean: Numbers) -> tuple[Numbers, Numbers | None]:
    """Compute eigenvalues and vectors of the covariance in units of features' spread; no vectors for variances."""
    width, spread = len(mean), spread_of(products, mean)
    if len(products) == width:
        return np.ones(width), None
    values, vectors = np.linalg.eigh(_square(products, width) / np.outer(spread, spread))
    return np.maximum(values, 0.0), vectors  # what devices tell need not be a covariance


def spread_of(products: Array, mean: Numbers) -> Numbers:
    variances = np.maximum(_diagonal(products, len(mean)).astype(np.float64), 0.0)
    size = np.mean(variances + np.square(mean)) + np.finfo(np.float32).tiny
    return np.sqrt(np.maximum(variances, LEAST_SPREAD**2 * size))


def unlikely(moments: Moments, spec: FeatureSpec) -> str | None:
    """Say why moments cannot be those of a model's features; None where they can."""
    variances = variances_of(moments)
    if (variances < 0).any():
        return "the variances of its features are negative"
    if len(moments.products) > len(moments.mean) and not _is_covariance(moments):
        return "the products of its features are no covariance matrix"
    square, most = float((variances + np.square(moments.mean)).sum()), MOST_TIMES_USUAL * max(spec.square, 1e-6)
    if square > most:
        return f"its features have a mean square of {square:.3g}, {square / spec.square:.0f} times the usual"
    return None


def variances_of(moments: Moments) -> Numbers:
    """Compute the variance of each feature."""
    return _diagonal(moments.products, len(moments.mean)).astype(np.float64)


def covariance_of(moments: Moments) -> Numbers:
    """Unpack the features' covariance [features, features], or their variances where no more is reported."""
    return _square(moments.products, len(moments.mean))


def _square(products: Array, width: int) -> Numbers:
    if len(products) == width:
        return products.astype(np.float64)
    square = np.zeros((width, width))
    square[np.triu_indices(width)] = products
    return square + np.triu(square, 1).T


def _is_covariance(moments: Moments) -> bool:
    """Tell whether products are a covariance, up to rounding: no direction has a negative variance."""
    spread = spread_of(moments.products, np.zeros(len(moments.mean)))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = covariance_of(moments) / np.outer(spread, spread) + ROUNDING * np.eye(len(spread))
    try:
        return bool(np.isfinite(np.linalg.cholesky(scaled)).all())
    except np.linalg.LinAlgError:
        return False


def _diagonal(products: Array, width: int) -> Array:
    """Take the diagonal of a packed triangle; variances are returned as they are."""
    return products if len(products) == width else products[np.cumsum([0, *range(width, 1, -1)])]
