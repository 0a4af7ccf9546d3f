"""Discount updates that began with older weights, in buffered rounds (FedBuff; Nguyen et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edge_client.arrays import Weights
from server.strategy.state import ServerState
from server.strategy.updates import Contribution


def share(staleness: int) -> float:
    """Discount an update that began so many versions ago: 1 / sqrt(1 + staleness)."""
    return 1.0 / math.sqrt(1.0 + staleness)


def aged(update: Mapping[str, Any], base: Weights, start: Weights, staleness: int) -> dict[str, Any]:
    """Move an update to the weights at the start: its discounted difference from those it began with is added to them.

    Computed in 64 bits, so that subtracting and adding loses nothing. Arrays other than weights stay.
    """
    left = share(staleness)

    def moved(name: str, value: Any) -> Any:
        return start[name].astype(np.float64) + left * (value.astype(np.float64) - base[name])

    return {name: moved(name, value) if name in start else value for name, value in update.items()}


def late_one(update: Contribution, base: int, start: ServerState, load: Callable[[int], ServerState]) -> Contribution:
    """Return an update as it counts for the weights at the start, whatever version of them it began with."""
    staleness = start.version - base
    if not staleness:
        return replace(update, staleness=0)

    def tensors() -> Mapping[str, Any]:
        return aged(update.tensors(), load(base).weights, start.weights, staleness)

    return replace(update, tensors=tensors, staleness=staleness)
