"""The directions of a client's step, and the gradient that derivatives along them stand for.

Everybody who has the client's seed draws the same ones again: the client before its step, and in mode iteration the
server and all other clients after it. How many there are, of what kind, and which parameters share one is the job's
choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edge_client.arrays import Array, Floats, Weights
from edge_client.bundle.manifest import Manifest, Unit
from edge_client.wire.protocol import Training
from edge_client.wire.scalars import ScalarReport

from .estimate import directions_for, estimate
from .philox import block

Draw = Callable[[Manifest, Sequence[int], int, Training, int], dict[str, Floats]]
"""Draws a step's directions, from a manifest, a client's units and seed, its training and a step's number."""


def step_directions(
    manifest: Manifest, units: Sequence[int], seed: int, training: Training, iteration: int
) -> dict[str, Floats]:
    """Draw the directions of a client's step, [K * rows, *shape] for each parameter, the head's where it takes some.

    Those of units with bottlenecks are there where examples have directions of their own, and along weights else.
    """
    return directions_for(
        manifest,
        units,
        seed=seed,
        iteration=iteration,
        batch=training.rows,
        kind=training.kind,
        length=training.length if training.per_example else None,
        directions=training.directions,
        head=training.head != "exact",
    )


def whole_gradient(manifest: Manifest, units: Sequence[int], training: Training) -> int:
    """Count the directions that hold these units' gradient; without noise if orthogonal and for one unit."""
    return block(sum(numbers_moved(manifest.units[unit], training) for unit in units) or 1)


def numbers_moved(unit: Unit, training: Training) -> int:
    """Count a unit's numbers that a direction of one text moves: its weights, or those of its bottleneck."""
    moving = unit.tangents_of(training.length) if training.per_example else unit.parameters
    return sum(parameter.size for parameter in moving)


def counted(training: Training, manifest: Manifest, parts: Iterable[Sequence[int]]) -> Training:
    """Set the number of directions where it is left open, to what the largest of clients' parts takes."""
    if training.directions:
        return training
    return replace(training, directions=max(whole_gradient(manifest, units, training) for units in parts))


def without_padding(directions: Mapping[str, Floats], manifest: Manifest, mask: Array) -> dict[str, Floats]:
    """Directions at bottlenecks without the tokens that only fill a text, which no loss depends on.

    They would add nothing to a derivative, and noise to the direction of weights that it is taken for. A unit that sees
    one token alone sees the one that the model reads.

    Args:
        directions: of a step, [K * batch, *shape].
        manifest: of the bundle.
        mask: [batch, tokens], 0 where a token only fills.
    """
    kept = dict(directions)
    for name, unit in manifest.bottlenecks.items():
        if name in kept and unit.token is None:
            rows = kept[name].reshape(-1, *mask.shape, kept[name].shape[-1])
            kept[name] = (rows * mask[..., None].astype(np.float32)).reshape(kept[name].shape)
    return kept


def combine(report: ScalarReport, drawn: Mapping[str, Floats], manifest: Manifest, training: Training) -> Weights:
    """Combine derivatives along these directions into a gradient; the head's only where it takes directions."""
    weight = np.zeros(training.rows, np.float32)
    weight[: report.examples] = 1
    head = manifest.head_names
    head_jvp = np.zeros_like(report.jvp) if report.head_jvp is None else report.head_jvp
    if training.head == "joint":
        return estimate(report.jvp + head_jvp, drawn, weight)
    units = {name: direction for name, direction in drawn.items() if name not in head}
    of_head = {name: direction for name, direction in drawn.items() if name in head}
    return estimate(report.jvp, units, weight) | estimate(head_jvp, of_head, weight)
