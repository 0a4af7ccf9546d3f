"""Decide through how many blocks a fleet's devices backpropagate, for a mean budget of forward passes a step.

Backpropagation through more of the last blocks costs more and learns more. What small devices leave of the budget,
others spend on depth: half a fleet that reaches all blocks is worth a whole one that reaches half of them. A unit that
enough devices report without noise is not estimated by the others: beside a true gradient an estimate weighs next to
nothing, and costs its passes all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from edge_client.wire.protocol import Training
from server.policy.directions import forward_plan, goes_forward
from server.policy.passes import affordable, passes

ENOUGH = 0.25
"""The share of the devices from which on the others leave a unit to those that backpropagate to it."""


@dataclass(frozen=True)
class Depth:
    """The depth to which a round's devices backpropagate."""

    blocks: int
    """The number of last blocks, at most."""
    estimates: bool = True
    """True if devices that do not reach a unit estimate its gradient."""

    def directed(self, units: tuple[int, ...]) -> tuple[int, ...]:
        """Return a slot's units that its device trains at any depth."""
        return units if self.estimates else ()


class Reach(NamedTuple):
    """The depths that a fleet's devices can reach, and the one they are given."""

    looked: float
    """The time at which it was computed."""
    limits: list[int]
    """The number of last blocks that each device can reach."""
    depth: Depth


def common_variant(manifest: Manifest, training: Training, most: float | None) -> Training:
    """Choose the training of all devices that have the memory for any, for at most `most` passes a step.

    A budget that does not pay for the way back to a single unit, be it that all blocks share their weights, pays for
    the cheapest one: the head alone is another method.
    """
    variants = kind_of(training).variants(training, manifest)
    if most is None:
        return variants[0]
    reaching = [variant for variant in variants if _reached(manifest, variant)] or variants[:1]
    return next((variant for variant in reaching if affordable(_cost(manifest, variant), most)), reaching[-1])


def common_units(manifest: Manifest, training: Training, most: float | None) -> tuple[int, ...]:
    """List the units that a job splits among devices: as many as all together may reach for so many passes."""
    if most is not None and goes_forward(training):
        return forward_plan(manifest, training, most).units
    if most is None or len(kind_of(training).variants(training, manifest)) == 1:
        return tuple(range(len(manifest.units)))
    return _reached(manifest, common_variant(manifest, training, most))


def depth_for(manifest: Manifest, training: Training, most: float | None, limits: Sequence[int]) -> Depth:
    """Choose the depth for devices each of which can go through so many blocks (`limits`)."""
    costs = costs_of(manifest, training)
    if most is None:
        return Depth(max(costs))
    common = common_variant(manifest, training, most).exact_blocks
    if sum(limit >= common for limit in limits) < ENOUGH * len(limits) or not limits:
        return Depth(common)
    deeper = (blocks for blocks in sorted(costs, reverse=True) if blocks > common)
    fitting = (blocks for blocks in deeper if affordable(fmean(costs[min(limit, blocks)] for limit in limits), most))
    alone = not manifest.head  # who estimates nothing then may have nothing to do
    return Depth(next(fitting, common), estimates=alone)


def costs_of(manifest: Manifest, training: Training) -> dict[int, float]:
    """Return the passes of a step by the number of last blocks it goes back through, if it estimates nothing."""
    return {
        variant.exact_blocks: _cost(manifest, variant) for variant in kind_of(training).variants(training, manifest)
    }


def _reached(manifest: Manifest, variant: Training) -> tuple[int, ...]:
    """Return the units that a step backpropagates to."""
    return kind_of(variant).joined(manifest, variant, ())


def _cost(manifest: Manifest, variant: Training) -> float:
    """Count the passes of a step that estimates nothing."""
    return passes(kind_of(variant), variant, manifest, _reached(manifest, variant))
