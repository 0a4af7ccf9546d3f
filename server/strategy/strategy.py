"""A strategy: which units the devices of a round train, and how their updates become the next weights.

A job names one by `strategy`; another distribution adds its own by an entry point of the group `spry.strategies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from edge_client.bundle.manifest import Manifest
from server.jobs.settings import JobSettings
from server.policy.assignment import RoundSlot
from server.privacy.noise import Noise
from server.strategy.outliers import Norms
from server.strategy.state import ServerState
from server.strategy.updates import Contribution, Outcome


@dataclass(frozen=True)
class RoundContext:
    """A round's settings and manifest, and what is usual in its job."""

    settings: JobSettings
    manifest: Manifest
    usual: Norms = field(default_factory=dict[str, float])
    """The usual norms of the job's updates."""
    noise: Noise = field(default_factory=Noise)
    """The source of a private mean's noise."""


class Strategy(ABC):
    """Decides who trains which units in a round, and turns its updates into the next weights.

    It knows no store, clock or network, so that the server, the simulator and a notebook call the same. It has no
    memory of its own: what later rounds need is in the state that it returns (`own`), and is kept with the
    weights.
    """

    def configure(self, number: int, slots: int, context: RoundContext) -> list[RoundSlot]:
        """Assign units to the slots of a round, as the job's `assignment` does it unless a strategy has its own way.

        It is asked whenever a slot is given to a device, so it answers the same for the same round.

        Args:
            number: the round's, from 1 on.
            slots: how many devices are invited.
            context: the job's settings, and the bundle's manifest.

        Returns:
            a slot for each slot, with the units that its device trains.
        """
        del number
        return context.settings.slots(context.manifest, slots)

    @abstractmethod
    def aggregate(self, state: ServerState, updates: Sequence[Contribution], context: RoundContext) -> Outcome:
        """Combine updates of a round in mode epoch, and take the server's step.

        Args:
            state: the weights that the round began with, and what was kept beside them.
            updates: the clients' weights after their local training, in the order of their slots; each holds the units
                that its client trained, and the head.
            context: the job's settings, and the bundle's manifest.
        """
