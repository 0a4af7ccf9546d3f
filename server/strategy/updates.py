"""What a strategy is given of a round, and what it gives back."""

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
    """How it trained."""
    norms: Norms
    report: Report
    tensors: Callable[[], Mapping[str, Any]]
    """Read when it is their turn."""
    staleness: int | None = None
    """How many versions ago it began, in a job whose rounds take what comes."""
    device: str = ""
    """Whose it is, by its id."""


@dataclass(frozen=True)
class Outcome:
    """The next weights, and what is known of how they came about."""

    model: ServerState
    change: Weights
    reports: list[Report]
    record: StepRecord | None = None
    refused: tuple[tuple[str, str], ...] = ()
    """Parts whose reports turned out to be outliers, and why."""
    odd: tuple[tuple[str, str], ...] = ()
    """Parts whose reports count, by a mean that they cannot move far, and what is far from the others' in them."""

    staleness: tuple[int, ...] = ()
    """Of each report that counts, in a job whose rounds take what comes."""
    summed: tuple[str, ...] = ()
    """Parts whose updates were added in secret."""
    lengths: Norms = field(default_factory=dict[str, float])
    """How far their mean goes."""

    @property
    def is_finite(self) -> bool:
        """Whether its weights, and what the next step starts from, are all numbers."""
        return all(np.isfinite(value).all() for value in self.model.repeatable.values())
