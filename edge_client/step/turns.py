"""Turns of a step's directions, where a bundle has no programs for all of them at once.

A turn may begin behind the cut, at the first segment that its directions move something in, on the hidden states that
the first turn has left there; if there is memory for those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.bundle.chain import Chain, first_use
from edge_client.bundle.manifest import PLAIN, Manifest
from edge_client.wire.protocol import Task


class Turn(NamedTuple):
    """Directions that run together."""

    numbers: NDArray[np.intp]
    """Which of the K."""
    begin: int
    """The segment where the pass begins: the cut for the first turn, and else where they first move something."""
    first: bool
    """Of its step: what does not depend on directions is taken from it."""


def directions_at_once(manifest: Manifest, directions: int) -> int:
    """The largest number of directions that there are programs for and that divides what is wanted."""
    fitting = [k for k in manifest.directions if directions % k == 0]
    return max(fitting, default=next(iter(manifest.directions), directions))


def turns(directions: Mapping[str, Array], count: int, chain: Chain, cut: int, *, late: bool) -> list[Turn]:
    """The turns of so many directions; all begin at the cut where they may not do so `late`.

    Those that begin at the same segment run together; an earlier one serves them all as well.
    """
    begins = _begins(directions, count, chain) if late else np.full(count, cut)
    order = np.argsort(begins, kind="stable")
    parts = [order[start : start + chain.directions] for start in range(0, count, chain.directions)]
    return [Turn(part, int(begins[part[0]]) if number else cut, not number) for number, part in enumerate(parts)]


def bytes_behind(chain: Chain, task: Task) -> int:
    """The size of what enters those segments behind the cut at which turns may begin."""
    training = task.training
    if not training.units_apart or training.directions == chain.directions:
        return 0
    units = chain.manifest.units
    begins = {first_use(chain.manifest, units[unit]) for unit in task.units} | {chain.head}
    states = [
        next(spec for spec in chain.program(begin, PLAIN).inputs if spec.name == "hidden")
        for begin in begins
        if begin > task.cut
    ]
    return sum(math.prod(state.shape) * np.dtype(state.dtype).itemsize for state in states)


def _begins(directions: Mapping[str, Array], count: int, chain: Chain) -> NDArray[np.intp]:
    """For each direction the first segment that it moves anything in."""
    begins = np.full(count, chain.head)
    for name, values in directions.items():
        moved = values.reshape(count, -1).any(axis=1)
        begins[moved] = np.minimum(begins[moved], chain.first_use.get(name, chain.head))
    return begins
