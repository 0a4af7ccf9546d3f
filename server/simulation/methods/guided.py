"""Directions that come with the weights instead of being drawn: a run's guide.

Whoever has labelled examples makes one (`server.simulation.compute.guide`): a few orthonormal directions for the units.
It stands in the server optimizer's state, so that it is saved and resumed like the rest of it, until the next one takes
its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.bundle.names import under, within
from edge_client.gradient.drawing import Draw, step_directions
from edge_client.gradient.estimate import parts
from edge_client.wire.protocol import Training

Guide = Mapping[str, Array]
"""[directions, *shape] for each parameter of a unit."""
_GUIDE = "g:"
"""Before a parameter's name in the optimizer's state of a simulation."""


def guide_in(state: Weights) -> Weights:
    """The guide that an optimizer's state holds; empty where it holds none."""
    return within(state, _GUIDE)


def in_state(guide: Guide) -> Weights:
    """A guide as a part of an optimizer's state."""
    return under(_GUIDE, guide)


def drawing_along(guide: Guide) -> Draw:
    """How a client's directions are drawn where some of them, or all, are the guide's."""
    return partial(_guided, guide) if guide else step_directions


def _guided(
    guide: Guide, manifest: Manifest, units: Sequence[int], seed: int, training: Training, iteration: int
) -> Weights:
    """A client's directions, [K * rows, *shape]: the guide's first, then drawn ones without what the guide spans.

    Examples of a batch share the guide's. Scaled such that the mean over all of v v^T is, where some are drawn, I by
    expectation, and else the projection on what the guide spans.
    """
    parameters = [parameter for unit in units for parameter in manifest.units[unit].parameters]
    if not parameters:
        return {}
    spanned = flat(guide, parameters)
    count, rest = training.directions, training.directions - len(spanned)
    rows = [np.sqrt(count) * np.repeat(spanned, training.rows, axis=0)]
    if rest:
        drawn = step_directions(manifest, units, seed, replace(training, directions=rest), iteration)
        others = flat(drawn, parameters)
        # Not by BLAS: in a simulation its threads and those of a round's clients would wait for each other.
        along = np.einsum("rn,kn->rk", others, spanned)
        rows.append(np.sqrt(count / rest) * (others - np.einsum("rk,kn->rn", along, spanned)))
    return dict(parts(parameters, np.concatenate(rows).astype(np.float32)))


def flat(rows: Guide, parameters: Sequence[Parameter]) -> NDArray[np.float64]:
    """[rows, numbers of all these parameters]; the inverse of `parts`."""
    return np.concatenate([rows[p.name].reshape(len(rows[p.name]), -1) for p in parameters], axis=1, dtype=np.float64)
