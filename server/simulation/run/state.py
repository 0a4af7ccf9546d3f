"""Define the state of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from edge_client.arrays import Weights
from server.strategy.state import ServerState


class Underway(NamedTuple):
    """A client's part of a round that it is at work on."""

    client: int
    slot: int
    base: int
    """The version that it began with, which is the number of rounds before."""
    ends: float
    """The end by the simulated clock."""


@dataclass(frozen=True)
class RunState:
    """The state that the next round needs."""

    model: ServerState
    round: int = 0
    last_change: Mapping[str, Any] | None = None
    """The weights' in the last round, where a method looks at it."""
    clock: float = 0.0
    """Simulated."""
    underway: tuple[Underway, ...] = ()
    """Schedule buffered: parts that go over to the next round."""
    bases: Mapping[int, Weights] = field(default_factory=dict[int, Weights])
    """The weights that these began with, by version."""
    given: Mapping[int, int] = field(default_factory=dict[int, int])
    """The number of times that each slot was given out."""
    drawn: int = 0
    """The number of clients drawn so far."""
