"""A strategy: how a round's updates become the next weights.

A job names one by `strategy`; another distribution adds its own by an entry point of the group `spry.strategies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from edge_client.bundle.manifest import Manifest
from server.jobs.settings import JobSettings
from server.privacy.noise import Noise
from server.strategy.outliers import Norms
from server.strategy.state import Model
from server.strategy.updates import Contribution, Outcome


@dataclass(frozen=True)
class RoundContext:
    """A round's settings and manifest, and what is usual in its job."""

    settings: JobSettings
    manifest: Manifest
    usual: Norms = field(default_factory=dict[str, float])
    """How far updates of the job usually go."""
    noise: Noise = field(default_factory=Noise)
    """Where the noise of a private mean is drawn."""


class Strategy(ABC):
    """Decides what a round's updates make of the weights.

    It knows no store, clock or network, so that the server, the simulator and a notebook call the same. It has no
    memory of its own: what later rounds are to know stands in the state that it returns, by names of its own among
    `optimizer`, and is kept with the weights.
    """

    @abstractmethod
    def aggregate(self, state: Model, updates: Sequence[Contribution], context: RoundContext) -> Outcome:
        """Combine updates of a round in mode epoch, and take the server's step.

        Args:
            state: the weights that the round began with, and what was kept beside them.
            updates: the clients' weights after their local training, in the order of their places; each holds the units
                that its client trained, and the head.
            context: the job's settings, and the bundle's manifest.
        """
