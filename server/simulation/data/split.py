"""Which rows of a data set are whose: index arrays, so that ten thousand clients cost no more than their rows.

`by_mix` gives each client a mix of kinds of its own, drawn from a Dirichlet distribution; `by_kind` gives each client
the rows of one kind, where each has an author or a device.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import DataError
from server.simulation.data.draws import Floats, Purpose, log_gammas, order

Indices = NDArray[np.int64]

LEAST = 2
"""Rows of a client: one to train on and one to be tested on."""
ALPHAS = (1e-6, 1e6)
_CELLS = 1 << 17
"""Clients times kinds whose mixes are drawn together."""


class Kinds(NamedTuple):
    """The kind of each row: its class, its title or its author."""

    names: tuple[str, ...]
    of: Indices


@dataclass(frozen=True)
class ClientRows:
    """Each client's rows, one client after the other."""

    rows: Indices
    ends: Indices

    def __len__(self) -> int:
        return len(self.ends)

    def of(self, client: int) -> Indices:
        return self.rows[self.ends[client - 1] if client else 0 : self.ends[client]]


def by_mix(kinds: Kinds, clients: int, alpha: float, seed: int) -> ClientRows:
    """Clients with equally many rows, no row twice; what is left of an uneven division is nobody's.

    A client's mix is drawn around the mix of all rows: the concentration is alpha for each of equally large kinds, and
    in proportion to its size for another. A kind that has run dry leaves its part to the client's others, so that the
    last clients take what the others have left.
    """
    if not ALPHAS[0] <= alpha <= ALPHAS[1]:
        raise DataError(f"alpha must be from {ALPHAS[0]:g} to {ALPHAS[1]:g}, got {alpha:g}")
    size = _equal_size(len(kinds.of), clients)
    present, of = np.unique(kinds.of, return_inverse=True)
    left = np.bincount(of)
    shuffled = order(len(of), seed, Purpose.ROWS)
    rows = shuffled[np.argsort(of[shuffled], kind="stable")]
    at = np.cumsum(left) - left
    result = np.empty((clients, size), np.int64)
    offsets = (order(clients, seed, Purpose.OFFSETS) + 0.5) / clients  # evenly spread: all roundings together are fair
    for client, mix in enumerate(_mixes(alpha * len(present) * left / len(of), clients, seed)):
        counts = _taken(mix, left, size, offsets[client])
        before = np.cumsum(counts) - counts
        result[client] = rows[np.arange(size) + np.repeat(at - before, counts)]
        at, left = at + counts, left - counts
    return ClientRows(result.ravel(), np.arange(1, clients + 1) * size)


def by_kind(kinds: Kinds, clients: int, seed: int) -> ClientRows:
    """Give each kind a client; of more kinds than clients the smallest are put together."""
    sizes = np.bincount(kinds.of, minlength=len(kinds.names))
    groups = [(int(size), kind, [kind]) for kind, size in enumerate(sizes) if size]
    if not 1 <= clients <= len(groups):
        values = len(groups)
        raise DataError(f"the column has {values} different values, for 1 to {values} clients, not {clients}")
    heapq.heapify(groups)
    while len(groups) > clients:
        one, other = heapq.heappop(groups), heapq.heappop(groups)
        heapq.heappush(groups, (one[0] + other[0], min(one[1], other[1]), one[2] + other[2]))
    if groups[0][0] < LEAST:
        raise DataError(f"{kinds.names[groups[0][1]]!r} has only one row, and a client needs {LEAST}: ask for fewer "
                        "clients, which puts the smallest values together")  # fmt: skip
    owner = np.zeros(len(sizes), np.int64)
    for client, (_, _, members) in enumerate(sorted(groups, key=lambda group: group[1])):
        owner[members] = client
    shuffled = order(len(kinds.of), seed, Purpose.ROWS)
    rows = shuffled[np.argsort(owner[kinds.of[shuffled]], kind="stable")]
    return ClientRows(rows, np.cumsum(np.bincount(owner[kinds.of])))


def held_back(rows: Indices, kinds: Kinds, share: float) -> tuple[Indices, Indices]:
    """Split a client's rows into those to train on and those it is tested on, both with its own mix of kinds.

    The test rows are evenly spaced among its rows sorted by kind, so that a kind's count is right to within one row.
    """
    count = min(max(round(len(rows) * share), 1), len(rows) - 1)
    rows = rows[np.argsort(kinds.of[rows], kind="stable")]
    chosen = np.zeros(len(rows), bool)
    chosen[((np.arange(count) + 0.5) * len(rows) / count).astype(np.int64)] = True
    return np.sort(rows[~chosen]), np.sort(rows[chosen])


def _equal_size(rows: int, clients: int) -> int:
    if not 1 <= clients <= rows // LEAST:
        raise DataError(f"{rows} rows are enough for 1 to {rows // LEAST} clients, {LEAST} rows each, not {clients}")
    return rows // clients


def _mixes(shapes: Floats, clients: int, seed: int) -> Iterator[Floats]:
    step = max(_CELLS // len(shapes), 1)
    for start in range(0, clients, step):
        yield from log_gammas(shapes, np.arange(start, min(start + step, clients)), seed)


def _taken(mix: Floats, left: Indices, size: int, offset: float) -> Indices:
    """Count the rows of each kind that a client takes of those that are left, from the logarithms of its mix."""
    counts = np.zeros_like(left)
    while (missing := size - int(counts.sum())) > 0:
        open_ = left > counts
        shares = np.exp(np.where(open_, mix, -np.inf) - mix[open_].max())
        counts = np.minimum(counts + _rounded(shares, missing, offset), left)
    return counts


def _rounded(shares: Floats, size: int, offset: float) -> Indices:
    """Round shares to whole numbers, less than one off; on average over the offsets exactly in proportion."""
    ends = np.cumsum(shares)
    edges = np.minimum(np.floor(ends / ends[-1] * size + offset), size)
    edges[-1] = size
    return np.diff(edges, prepend=0).astype(np.int64)
