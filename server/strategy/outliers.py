"""Refuse updates that go too far to be averaged: beyond the usual length in their job by a bound.

Norms are compared within a unit: those of queries and values differ by far more than any bound. A unit that too few
have held is compared with all units together, by the square of the bound.

Usual is the median of the round itself, of the last rounds, or of the job's first, whichever is largest. The round
itself counts because a fleet moves as one: behind a task layer of zeros units hardly move in the first round, and in
the second by what may be a hundred times as much, all of them. So an update is judged when its round closes and the
others' lie beside it; only what goes beyond the bound squared is refused as it comes. The first rounds count because a
fleet that has learned hardly moves any more: a device that meets something new then moves as far as everybody did at
the start, and is the one worth hearing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Unit
from edge_client.wire.scalars import Participant

Norms = dict[str, float]
"""The root mean square of a change: of all units ("units"), of the head ("head"), of each unit ("unit " and its
name), of each of the head's parameters ("of head " and its name)."""
_UNIT = "unit "
HEAD_NORM = "head"
_OF_HEAD = "of head "
FEWEST_NORMS = 3
"""The fewest norms of which a median says something."""
_FEWEST_NUMBERS = 24
FIRST_ROUNDS = 3
"""The rounds that are the start of a job."""
LAST_ROUNDS = 4
"""The newest rounds, the open one included: a unit may have one holder in a round, or none."""


def kind_of_unit(unit: Unit) -> str:
    """Name a unit's entry among the norms."""
    return _UNIT + unit.name


def kind_in_head(name: str) -> str:
    """Name the entry of one of the head's parameters among the norms."""
    return _OF_HEAD + name


def norms(
    update: Mapping[str, NDArray[Any]], weights: Weights, head: frozenset[str], units: Sequence[Unit] = ()
) -> Norms:
    """Compute the root mean square of an update's change: of units and head, of each unit and each part of the head."""
    lengths: Norms = {}
    each = [(kind_of_unit(unit), update.keys() & {one.name for one in unit.parameters}) for unit in units]
    each += [(kind_in_head(name), {name}) for name in sorted(update.keys() & head)]
    for kind, names in (("units", update.keys() - head), (HEAD_NORM, update.keys() & head), *each):
        size = sum(update[name].size for name in names)
        if size:
            squares = sum(
                float(np.square(update[name] - weights[name], dtype=np.float64).sum()) for name in sorted(names)
            )
            lengths[kind] = (squares / size) ** 0.5
    return lengths


def usual(*groups: Sequence[Norms], fewest: int = FEWEST_NORMS) -> Norms:
    """Return the largest of the groups' medians for each part; a part of which no group has enough is left out."""
    medians: Norms = {}
    for group in groups:
        for kind in sorted({kind for norms in group for kind in norms}):
            known = [norms[kind] for norms in group if kind in norms]
            if len(known) >= fewest:
                medians[kind] = max(medians.get(kind, 0.0), statistics.median(known))
    return medians


def beyond(update: Norms, usual: Norms, bound: float) -> str | None:
    """Name the part of an update that goes more than `bound` times as far as usual, in words; None where none does."""
    by_unit = any(kind.startswith(_UNIT) for kind in update)
    for kind, norm in update.items():
        if (kind == "units" and by_unit) or kind.startswith(_OF_HEAD):
            continue
        median, most = usual.get(kind, 0.0), bound
        if kind.startswith(_UNIT) and kind not in usual:
            median, most = usual.get("units", 0.0), bound**2
        if median > 0 and norm > most * median:
            return (
                f"its {kind} move by {norm:.3g} a weight, {norm / median:.0f} times the median; "
                f"at most {most:g} times is accepted"
            )
    return None


# --- scalars ---------------------------------------------------------------------------------------------------------


def sizes(client: Participant) -> Norms:
    """Compute the root mean square of a report's derivatives, of its units and of its head."""
    report = client.report
    of_units = _size(report.jvp)
    lengths = {"units": of_units, _UNIT + ",".join(map(str, client.units)): of_units}
    head = report.head_jvp if report.head_gradient is None else report.head_gradient
    return lengths if head is None else lengths | {"head": _size(head)}


def usual_sizes(clients: Sequence[Participant], earlier: Sequence[Participant]) -> Norms:
    """Compute the usual size of a step's derivatives, by its own reports and those of steps before it.

    A median of few numbers may be almost nothing by chance, so it takes more reports where each holds few.
    """
    if not clients:
        return {}
    fewest = max(FEWEST_NORMS, -(-_FEWEST_NUMBERS // max(clients[0].report.jvp.size, 1)))
    return usual([sizes(client) for client in clients], [sizes(client) for client in earlier], fewest=fewest)


def _size(values: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
