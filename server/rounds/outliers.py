"""Which updates go too far to be averaged: beyond what is usual in their job by a bound.

Usual is the median of the last two rounds or that of the job's first, whichever is larger. The first rounds count
because a fleet that has learned hardly moves any more: a device that meets something new then moves as far as
everybody did at the start, and is the one worth hearing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from server.storage import parts
from server.storage.database import Database

Norms = dict[str, float]
"""Root mean square of a change, of the units ("units") and of the head ("head")."""
FEWEST_NORMS = 3
"""Below this a median says nothing."""
FIRST_ROUNDS = 3
"""The start of a job."""


def norms(update: Mapping[str, NDArray[Any]], weights: Weights, head: frozenset[str]) -> Norms:
    """How far an update goes, of its units and of its head, whatever their number of weights."""
    lengths: Norms = {}
    for kind, names in (("units", update.keys() - head), ("head", update.keys() & head)):
        size = sum(update[name].size for name in names)
        if size:
            squares = sum(
                float(np.square(update[name] - weights[name], dtype=np.float64).sum()) for name in sorted(names)
            )
            lengths[kind] = (squares / size) ** 0.5
    return lengths


def usual(*groups: Sequence[Norms]) -> Norms:
    """The largest of the groups' medians; a part of which no group has enough is left out."""
    medians: Norms = {}
    for group in groups:
        for kind in ("units", "head"):
            known = [norms[kind] for norms in group if kind in norms]
            if len(known) >= FEWEST_NORMS:
                medians[kind] = max(medians.get(kind, 0.0), statistics.median(known))
    return medians


def beyond(update: Norms, usual: Norms, bound: float) -> str | None:
    """Which part of an update goes more than `bound` times as far as is usual, in words."""
    for kind, norm in update.items():
        median = usual.get(kind, 0.0)
        if median > 0 and norm > bound * median:
            return (
                f"its {kind} move by {norm:.3g} a weight, {norm / median:.0f} times the median; "
                f"at most {bound:g} times is taken"
            )
    return None


def usual_in(database: Database, job: str, number: int) -> Norms:
    """What updates of a job's round are compared with; of the round before too, so that the first one can be."""
    with database.read() as connection:
        known = parts.accepted_norms(connection, job, since=number - 1, until=FIRST_ROUNDS)
    return usual(
        [norms for round_, norms in known if round_ >= number - 1],
        [norms for round_, norms in known if round_ <= FIRST_ROUNDS],
    )
