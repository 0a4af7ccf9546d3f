"""Directions that come with the weights instead of being drawn: a job's guide.

Whoever has labelled examples makes one: a few orthonormal directions for the units. It stands in the server optimizer's
state, so that it is saved, sent and resumed like the rest of it, until the next one takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.wire.protocol import Training

from .estimate import parts

Guide = Mapping[str, Array]
"""[directions, *shape] for each parameter of a unit."""
NO_GUIDE: Guide = MappingProxyType({})
"""All directions are drawn."""
GUIDE = "g:"
"""Stands before a parameter's name in the optimizer's state."""


def guide_in(state: Weights) -> Weights:
    """What it holds of one."""
    return {name.removeprefix(GUIDE): rows for name, rows in state.items() if name.startswith(GUIDE)}


def in_state(guide: Guide) -> Weights:
    """The inverse."""
    return {GUIDE + name: rows for name, rows in guide.items()}


def drawn_beside(guide: Guide, training: Training) -> int:
    """How many of the K directions are still drawn."""
    return training.directions - len(next(iter(guide.values()))) if guide else training.directions


def guided(guide: Guide, drawn: Guide, manifest: Manifest, units: Sequence[int], training: Training) -> Weights:
    """A client's directions, [K * rows, *shape]: the guide's first, then drawn ones without what the guide spans.

    Examples of a batch share the guide's. Scaled such that the mean over all of v v^T is, where some are drawn, I by
    expectation, and else the projection on what the guide spans.
    """
    parameters = [parameter for unit in units for parameter in manifest.units[unit].parameters]
    spanned = flat(guide, parameters)
    count, rest = training.directions, drawn_beside(guide, training)
    rows = [np.sqrt(count) * np.repeat(spanned, training.rows, axis=0)]
    if rest:
        others = flat(drawn, parameters)
        # Not by BLAS: in a simulation its threads and those of a round's clients would wait for each other.
        along = np.einsum("rn,kn->rk", others, spanned)
        rows.append(np.sqrt(count / rest) * (others - np.einsum("rk,kn->rn", along, spanned)))
    return dict(parts(parameters, np.concatenate(rows).astype(np.float32)))


def flat(rows: Guide, parameters: Sequence[Parameter]) -> NDArray[np.float64]:
    """[rows, numbers of all these parameters]; the inverse of `parts`."""
    return np.concatenate([rows[p.name].reshape(len(rows[p.name]), -1) for p in parameters], axis=1, dtype=np.float64)
