"""Which rows of many clients' batches run together, and their results in the clients' order again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edge_client.arrays import Array
from edge_client.data.batches import Batch

Integers = NDArray[np.intp]
_NO_LOGIT = -1e9
"""The logit of positions that were left out because no row reaches them."""


class RowGroup(NamedTuple):
    """Rows of some clients' batches that run together."""

    rows: Integers
    """Their numbers, with one batch below the other."""
    clients: list[int]
    owner: Integers
    """The position in `clients` of each row's client."""
    row: Integers
    """The number of each row in its own batch."""
    longest: int
    """Tokens of the longest row."""


def row_groups(batches: Sequence[Batch], depths: Sequence[int], most: int) -> list[RowGroup]:
    """Group all rows: those together that reach about as deep and are about as long."""
    size = len(batches[0].weight)
    lengths = np.concatenate([batch.tokens["attention_mask"].sum(1) for batch in batches])
    by_depth = np.argsort(np.repeat(depths, size), kind="stable")
    groups: list[RowGroup] = []
    for start in range(0, len(by_depth), 2 * most):
        alike = by_depth[start : start + 2 * most]
        by_length = alike[np.argsort(lengths[alike], kind="stable")]
        for first in range(0, len(by_length), most):
            rows = by_length[first : first + most]
            clients, owner = np.unique(rows // size, return_inverse=True)
            groups.append(RowGroup(rows, clients.tolist(), owner, rows % size, max(2, int(lengths[rows].max()))))
    return groups


class Results:
    """Losses and logits of clients' batches, put in group by group."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batch = Batch(
            0,
            {name: np.concatenate([batch.tokens[name] for batch in batches]) for name in batches[0].tokens},
            np.concatenate([batch.labels for batch in batches]),
            np.concatenate([batch.weight for batch in batches]),
        )
        self._shape = len(batches), len(batches[0].weight)
        self._loss = np.zeros(len(self.batch.weight), np.float32)
        self._logits: Array | None = None
        self._features: Array | None = None

    def put(self, group: RowGroup, loss: Tensor, logits: Tensor, features: Tensor | None = None) -> None:
        self._loss[group.rows] = loss.detach().cpu().numpy()
        self._logits = self._filled(self._logits, group, logits, _NO_LOGIT)
        if features is not None:
            self._features = self._filled(self._features, group, features, 0.0)

    def _filled(self, whole: Array | None, group: RowGroup, given: Tensor, nothing: float) -> Array:
        """Put a group's rows in; where they are of each token, those that no row reaches are left out."""
        values = given.detach().float().cpu().numpy()
        cut_off = values.ndim == 3
        if whole is None:
            length = next(iter(self.batch.tokens.values())).shape[1]
            shape = (length, values.shape[2]) if cut_off else values.shape[1:]
            whole = np.full((len(self._loss), *shape), nothing, np.float32)
        if cut_off:
            whole[group.rows, : group.longest] = values
        else:
            whole[group.rows] = values
        return whole

    @property
    def loss(self) -> Array:
        """The losses of each client's batch."""
        return self._loss.reshape(self._shape)

    @property
    def logits(self) -> Array:
        assert self._logits is not None  # there is a group at least
        return self._logits.reshape(*self._shape, *self._logits.shape[1:])

    @property
    def features(self) -> Array | None:
        return None if self._features is None else self._features.reshape(*self._shape, *self._features.shape[1:])
