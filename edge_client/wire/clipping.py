"""Clip one device's update, where its job keeps a privacy budget: all of it together, by its L2 norm.

The device clips before it sends, so that nobody learns of an update more than what counts; the server clips again
(`server.privacy.mechanism`), as an older device does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights

from .protocol import Report

Changes = dict[str, NDArray[np.float64]]


def changes_of(start: Mapping[str, Array], update: Mapping[str, Array]) -> Changes:
    """Compute how far an update moves each parameter."""
    return {name: update[name].astype(np.float64) - start[name] for name in sorted(update)}


def length_of(changes: Changes) -> float:
    """Compute the L2 norm of all changes together."""
    return float(np.sqrt(sum(float(np.square(change).sum()) for change in changes.values())))


def shortened(changes: Changes, most: float) -> Changes:
    """Shorten changes to a length of `most`, in the same direction."""
    length = length_of(changes)
    return changes if length <= most else {name: change * (most / length) for name, change in changes.items()}


def clipped(start: Mapping[str, Array], update: Mapping[str, Array], most: float) -> Weights:
    """Clip an update to go no further than `most` from the round's weights."""
    kept = shortened(changes_of(start, update), most)
    return {name: (start[name] + change).astype(np.float32) for name, change in kept.items()}


def silent(report: Report) -> Report:
    """Return a report without what the examples decide: no budget pays for a loss or a count."""
    return replace(
        report, examples=1, loss=0.0, held_back=0, right_global=0, right_personal=0, measured=0,
        sums_global={}, sums_personal={},
    )  # fmt: skip
