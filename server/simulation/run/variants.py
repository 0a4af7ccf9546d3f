"""Decide how a simulated fleet's clients train: some can hold any step, the others next to none."""

from __future__ import annotations

from typing import NamedTuple

from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import Training
from server.jobs.settings import JobSettings
from server.policy.assignment import RoundSlot
from server.policy.depths import Depth
from server.simulation.plan import Plan


class FleetVariants(NamedTuple):
    """The training variants that a server gives its devices, by what they can hold."""

    able: int
    """The number of clients, the first ones, that can hold any step."""
    best: Training
    least: Training
    """The variant of clients that can hold the way back through one block, or none."""
    depth: Depth | None
    """The depth; None where there is no choice."""

    def of(self, client: int) -> Training:
        """Return a client's training."""
        return self.best if client < self.able else self.least

    def slot(self, slot: RoundSlot) -> RoundSlot:
        """Return a slot, with the units that its client trains at any depth."""
        return slot if self.depth is None else RoundSlot(slot.number, self.depth.directed(slot.units))


def variants_in(plan: Plan, settings: JobSettings, manifest: Manifest, clients: int) -> FleetVariants:
    """Compute the training variants of a plan's clients."""
    variants, able = (
        plan.kind.estimator_of(settings.training).variants(settings.training, manifest),
        round(plan.able * clients),
    )
    if len(variants) == 1:
        return FleetVariants(able, variants[0], variants[0], None)
    most, least = variants[0].exact_blocks, variants[-1 if plan.others == "forward" else -2].exact_blocks
    others = 0 if plan.others == "absent" else clients - able
    depth = settings.depth(manifest, [most] * able + [least] * others)
    within = [variant for variant in variants if variant.exact_blocks <= depth.blocks]
    return FleetVariants(able, within[0], next(variant for variant in within if variant.exact_blocks <= least), depth)
