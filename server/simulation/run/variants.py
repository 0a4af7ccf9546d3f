"""How a simulated fleet's clients train: some can hold whatever step there is, the others next to none."""

from __future__ import annotations

from typing import NamedTuple

from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import Training
from server.jobs.assignment import RoundSlot
from server.jobs.depths import Depth
from server.jobs.settings import JobSettings
from server.simulation.plan import Plan


class Ways(NamedTuple):
    """The training variants that a server gives its devices, by what they can hold."""

    able: int
    """So many, the first ones, can hold whatever step there is."""
    best: Training
    least: Training
    """Of those that can hold a block's way back, or none."""
    depth: Depth | None
    """None where there is no choice."""

    def of(self, client: int) -> Training:
        """How a client trains."""
        return self.best if client < self.able else self.least

    def place(self, slot: RoundSlot) -> RoundSlot:
        """A place, with the units that its client trains however far it goes back."""
        return slot if self.depth is None else RoundSlot(slot.number, self.depth.directed(slot.units))


def ways_in(plan: Plan, settings: JobSettings, manifest: Manifest, clients: int) -> Ways:
    """Compute the training variants of a plan's clients."""
    ways, able = plan.kind.estimator_of(settings.training).ways(settings.training, manifest), round(plan.able * clients)
    if len(ways) == 1:
        return Ways(able, ways[0], ways[0], None)
    most, least = ways[0].exact_blocks, ways[-1 if plan.others == "forward" else -2].exact_blocks
    others = 0 if plan.others == "absent" else clients - able
    depth = settings.depth(manifest, [most] * able + [least] * others)
    within = [way for way in ways if way.exact_blocks <= depth.blocks]
    return Ways(able, within[0], next(way for way in within if way.exact_blocks <= least), depth)
