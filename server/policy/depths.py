"""How far back through a model a fleet's devices go, where a step may cost so many forward passes in their mean.

The way back through more of the last blocks costs more and tells more. What devices that hold little leave over, others
go deeper for: half a fleet that tells all blocks is worth a whole one that tells half of them. A unit that enough
devices tell without noise is not estimated by the others: beside a true gradient an estimate weighs next to nothing,
and costs its passes all the same.
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
from server.policy.passes import passes

ENOUGH = 0.25
"""Of the devices: where as many go back to a unit, the others leave it to them."""
_ROUNDED = 0.005
"""Of a pass: budgets are written with two decimals."""


@dataclass(frozen=True)
class Depth:
    """How far a round's devices go back."""

    blocks: int
    """At most, through so many of the last ones."""
    estimates: bool = True
    """Whether who does not reach a unit estimates its gradient."""

    def directed(self, units: tuple[int, ...]) -> tuple[int, ...]:
        """List a slot's units that its device trains however far it goes back."""
        return units if self.estimates else ()


class Reach(NamedTuple):
    """How far back a fleet's devices can go, and are to."""

    looked: float
    """When."""
    limits: list[int]
    """Through so many of the last blocks, each."""
    depth: Depth


def common_variant(manifest: Manifest, training: Training, most: float | None) -> Training:
    """How all of a fleet's devices train that can hold whatever there is, for at most so many passes a step.

    A budget that does not pay for the way back to a single unit, be it that all blocks share their weights, pays for
    the cheapest one: the head alone is another method.
    """
    variants = kind_of(training).variants(training, manifest)
    if most is None:
        return variants[0]
    reaching = [variant for variant in variants if _reached(manifest, variant)] or variants[:1]
    return next((variant for variant in reaching if _cost(manifest, variant) <= most + _ROUNDED), reaching[-1])


def common_units(manifest: Manifest, training: Training, most: float | None) -> tuple[int, ...]:
    """List the units that a job splits among devices: as many as all together may reach for so many passes."""
    if most is not None and goes_forward(training):
        return forward_plan(manifest, training, most).units
    if most is None or len(kind_of(training).variants(training, manifest)) == 1:
        return tuple(range(len(manifest.units)))
    return _reached(manifest, common_variant(manifest, training, most))


def depth_for(manifest: Manifest, training: Training, most: float | None, limits: Sequence[int]) -> Depth:
    """How far devices go back of which each can go through so many blocks."""
    costs = costs_of(manifest, training)
    if most is None:
        return Depth(max(costs))
    common = common_variant(manifest, training, most).exact_blocks
    if sum(limit >= common for limit in limits) < ENOUGH * len(limits) or not limits:
        return Depth(common)
    deeper = (blocks for blocks in sorted(costs, reverse=True) if blocks > common)
    fitting = (blocks for blocks in deeper if fmean(costs[min(limit, blocks)] for limit in limits) <= most + _ROUNDED)
    alone = not manifest.head  # who estimates nothing then may have nothing to do
    return Depth(next(fitting, common), estimates=alone)


def costs_of(manifest: Manifest, training: Training) -> dict[int, float]:
    """The passes of a step that goes back through so many of the last blocks and estimates nothing."""
    return {
        variant.exact_blocks: _cost(manifest, variant) for variant in kind_of(training).variants(training, manifest)
    }


def _reached(manifest: Manifest, variant: Training) -> tuple[int, ...]:
    """The units that a step goes back through."""
    return kind_of(variant).joined(manifest, variant, ())


def _cost(manifest: Manifest, variant: Training) -> float:
    """Count the passes of a step that estimates nothing."""
    return passes(kind_of(variant), variant, manifest, _reached(manifest, variant))
