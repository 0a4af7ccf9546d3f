"""Compute the moments of the features that a device's examples hand to the layer of the logits.

The gradient of that layer is a product of errors and features. Where features have a mean as large as their spread, or
go along few directions, most of the gradient is about what says little of the task, and no one rate fits. Mean and
covariance of the features say how to undo that: the server joins those of all devices, and steps by them
(`server.strategy.features`). A device reports them where its task asks for them, of a few examples, beside its
update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import FeatureSpec, Manifest
from edge_client.bundle.names import FEATURES
from edge_client.data.batches import Batch, Labelled, in_order, shuffled
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.tasks.task import TaskType

MOST = 64
"""Examples that are looked at."""
MOST_PRODUCTS = 1024
"""The most features whose products are reported: of more, only the variances are, as products would be megabytes."""

MEAN, PRODUCTS = FEATURES + "mean", FEATURES + "products"


class Moments(NamedTuple):
    """The mean and covariance of some rows' features."""

    rows: int
    mean: Array
    """[features]"""
    products: Array
    """The means of products of two features about their means, row by row from the diagonal on; or the variances."""

    @property
    def tensors(self) -> dict[str, Array]:
        """The names of the moments' tensors in an update."""
        return {MEAN: self.mean, PRODUCTS: self.products} if self.rows else {}


NOTHING = Moments(0, np.zeros(0, np.float32), np.zeros(0, np.float32))
"""The moments where none are asked for, or reported."""
FeaturesOf = Callable[[Batch, Weights], Array]
"""Features of a batch with these weights."""


def measured(
    features_of: FeaturesOf,
    examples: Sequence[Example],
    encoder: TextEncoder,
    task: TaskType,
    weights: Weights,
    seed: int,
) -> Moments:
    """Measure the moments of some of a device's examples, which a seed chooses."""
    parts = rows_of(features_of, some(examples, MOST, seed), encoder, task, weights)
    return moments_of(np.concatenate([rows for rows, _ in parts]))


def some(examples: Sequence[Example], most: int, seed: int) -> list[Example]:
    """Choose up to `most` examples, in their order."""
    return [examples[number] for number in sorted(shuffled(len(examples), seed, 0)[:most])]


def rows_of(
    features_of: FeaturesOf, examples: Sequence[Example], encoder: TextEncoder, task: TaskType, weights: Weights
) -> Iterator[tuple[Array, Labelled]]:
    """Rows of features, beside the batch of examples that they are of."""
    for part in in_order(examples, encoder, task.encode):
        yield task.feature_rows(features_of(part.batch, weights)[: len(part.examples)], part), part


def moments_of(rows: Array) -> Moments:
    """Compute the moments of features [rows, features]."""
    count, width = rows.shape
    mean = rows.mean(0, dtype=np.float64).astype(np.float32)
    about = rows - mean
    if width > MOST_PRODUCTS:
        return Moments(count, mean, np.square(about, dtype=np.float64).mean(0).astype(np.float32))
    products = np.tensordot(about, about, (0, 0))[np.triu_indices(width)] / np.float32(count)
    return Moments(count, mean, np.asarray(products, np.float32))


def shapes_of(manifest: Manifest, spec: FeatureSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that hold a model's moments."""
    width = next(parameter.shape[-1] for parameter in manifest.head if parameter.name == spec.weight)
    return {MEAN: (width,), PRODUCTS: (width if width > MOST_PRODUCTS else width * (width + 1) // 2,)}


def without_moments(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return an update's weights alone."""
    return {name: value for name, value in tensors.items() if not name.startswith(FEATURES)}


def moments_in(tensors: Mapping[str, Array], rows: int) -> Moments:
    """Return the moments that an update reports, of so many rows; none where it reports none."""
    return Moments(rows, tensors[MEAN], tensors[PRODUCTS]) if rows and MEAN in tensors else NOTHING
