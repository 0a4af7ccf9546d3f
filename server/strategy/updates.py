"""Define a strategy's input, the contributions of a round, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_client.arrays import Weights
from edge_client.wire.protocol import Report, Training
from edge_client.wire.scalars import StepRecord
from server.strategy.outliers import Norms
from server.strategy.state import ServerState


@dataclass(frozen=True)
class Contribution:
    """One client's weights after its part of a round."""

    part: str
    units: tuple[int, ...]
    training: Training
    """The settings by which it trained."""
    norms: Norms
    report: Report
    tensors: Callable[[], Mapping[str, Any]]
    """Reads the tensors when it is the update's turn."""
    staleness: int | None = None
    """The number of versions since it began, in a job with buffered rounds."""
    device: str = ""
    """The device's id."""


@dataclass(frozen=True)
class Outcome:
    """The next weights, and a record of how they were computed."""

    model: ServerState
    change: Weights
    reports: list[Report]
    record: StepRecord | None = None
    refused: tuple[tuple[str, str], ...] = ()
    """The parts whose reports turned out to be outliers, and why."""
    odd: tuple[tuple[str, str], ...] = ()
    """The parts whose reports count, by a mean that they cannot move far, and what is far from the others' in them."""

    staleness: tuple[int, ...] = ()
    """The staleness of each report that counts, in a job with buffered rounds."""
    summed: tuple[str, ...] = ()
    """The parts whose updates were added by secure aggregation."""
    lengths: Norms = field(default_factory=dict[str, float])
    """The norms of their mean."""

    @property
    def is_finite(self) -> bool:
        """True if its weights, and what the next step starts from, are all numbers."""
        return all(np.isfinite(value).all() for value in self.model.repeatable.values())
