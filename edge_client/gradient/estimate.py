"""Estimate the gradient from directions and directional derivatives.

For an example's loss with gradient g and a direction v drawn from N(0, I), (g.v) v has the expectation g. A step gives
every example its own K directions; their products are averaged over directions and, weighted, over examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_client.arrays import Array, Arrays
from edge_client.bundle.chain import unit_at
from edge_client.bundle.manifest import Manifest, Parameter, Unit
from edge_client.errors import ProgramInputError
from edge_client.wire.protocol import DirectionKind

from .philox import draw


def directions_for(
    manifest: Manifest,
    units: Iterable[int],
    seed: int,
    *,
    iteration: int = 0,
    directions: int = 1,
    batch: int = 1,
    head: bool = False,
    kind: DirectionKind = "normal",
    length: int | None = None,
) -> dict[str, Array]:
    """Draw the directions of these units (by number) in one step: parameter -> [directions * batch, *shape].

    Units left out get none, which a step takes as zero. With `head`, the head's parameters get theirs; the head counts
    as the unit after the last. With the `length` of the texts, directions of units that have bottlenecks are at those,
    as the programs of a step take them, and the shapes those of `Unit.tangents_of`.
    """
    drawn = [(number, _moving(unit_at(manifest, number), length)) for number in units]
    if head and manifest.head:
        drawn.append((len(manifest.units), manifest.head))
    by_parameter: dict[str, Array] = {}
    for number, parameters in drawn:
        size = sum(parameter.size for parameter in parameters)
        flat = draw(seed, number, size, iteration=iteration, directions=directions, examples=batch, kind=kind)
        by_parameter.update(parts(parameters, flat))
    return by_parameter


def _moving(unit: Unit, length: int | None) -> Sequence[Parameter]:
    return unit.parameters if length is None else unit.tangents_of(length)


def parts(parameters: Iterable[Parameter], flat: Array) -> Iterator[tuple[str, Array]]:
    """Rows over all of these parameters -> each parameter's name and its [rows, *shape]."""
    start = 0
    for parameter in parameters:
        part = flat[:, start : start + parameter.size]
        yield parameter.name, np.ascontiguousarray(part).reshape(len(flat), *parameter.shape)
        start += parameter.size


def estimate(jvp: Array, directions: Arrays, example_weight: ArrayLike | None = None) -> dict[str, Array]:
    """Estimate the gradient of the weighted mean loss, from derivatives [K, batch] and their directions."""
    if jvp.ndim != 2:
        raise ProgramInputError(f"jvp must have shape [K, batch], got {list(jvp.shape)}")
    count, batch = jvp.shape
    coefficients = (jvp * shares(example_weight, batch) / count).astype(np.float32).reshape(-1)
    gradients: dict[str, Array] = {}
    for name, direction in directions.items():
        if len(direction) != coefficients.size:
            raise ProgramInputError(
                f"the direction of {name} must have K x batch = {count} x {batch} rows, got {len(direction)}"
            )
        gradients[name] = (coefficients @ direction.reshape(coefficients.size, -1)).reshape(direction.shape[1:])
    return gradients


def slopes(gradient: Array, tangent: Array, example_weight: ArrayLike | None = None) -> Array:
    """[K, batch]: derivatives of examples' losses along tangents [K * batch, ...] of a state.

    Args:
        gradient: [batch, ...], the weighted loss's by that state.
        tangent: what the state moves by along each direction.
        example_weight: what the examples counted; those that counted nothing have no derivative.
    """
    share = shares(example_weight, len(gradient))
    rows = gradient.reshape(len(share), -1)
    products = np.einsum("bn,kbn->kb", rows, tangent.reshape(-1, *rows.shape), dtype=np.float64)
    return np.divide(products, share, out=np.zeros_like(products), where=share > 0).astype(np.float32)


def shares(example_weight: ArrayLike | None, batch: int) -> NDArray[np.float32]:
    """Compute each example's share of 1: equal ones without weights, 0 for rows that only fill a batch."""
    if example_weight is None:
        return np.full(batch, 1.0 / batch, np.float32)
    weight = np.asarray(example_weight, np.float64)
    if weight.shape != (batch,):
        raise ProgramInputError(f"example_weight must have shape [{batch}], got {list(weight.shape)}")
    if not np.all(np.isfinite(weight)) or np.any(weight < 0) or not np.any(weight > 0):
        raise ProgramInputError(f"example_weight must be finite, not negative, and not all zero; got {weight.tolist()}")
    return (weight / weight.sum()).astype(np.float32)
