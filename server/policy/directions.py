"""Choose the units and the number of directions of a device that runs forward passes alone, for a budget of passes.

An estimate of d numbers along K directions, from n texts, has about d / (K n) times the noise that the texts themselves
leave. The later the cut, the fewer numbers share a derivative and the less a direction costs, a sixth of a block in a
last one whose result is read at one token; but fewer units learn. A unit whose estimate has so much noise gives
1 / (1 + noise) of what its true gradient would: the plan is the one with most of that over all units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from edge_client.bundle.chain import directions_at_once, first_use
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.forward import Forward
from edge_client.estimators.registry import kind_of
from edge_client.gradient.drawing import numbers_moved
from edge_client.wire.protocol import Training
from server.policy.passes import affordable, passes, share_from

TEXTS = 25
"""The number of texts by which a step's noise is divided: fewer than a round's, as their gradients differ. By a
hundred, bottlenecks of two blocks along 5 directions would be chosen: .747 on SST-2 and .515 on SNLI after 30 rounds,
where the last block alone along 6 had .788 and .537 (one seed, 600 test texts, which it was chosen by)."""
MOST = 32
"""The most directions of a step. In turns of 16 they take MiniLM's last block the memory of one direction in its last
half; 64 at once take four times as much."""
_VALUES = 0.5
"""The share of a block that a single token's result costs: its own values, keys and values of all tokens above all."""


class ForwardPlan(NamedTuple):
    """The step of all of a job's devices."""

    units: tuple[int, ...]
    """The units of each device: they share a derivative, as the pass from the first one on is paid for."""
    directions: int


def goes_forward(training: Training) -> bool:
    """Tell whether a job's devices have no other step than a pass with tangents."""
    return issubclass(kind_of(training), Forward)


def forward_plan(manifest: Manifest, training: Training, most: float) -> ForwardPlan:
    """Choose the cut, with all units from there on, and the number of directions where the job leaves it open.

    A budget that pays for no direction at all pays for the cheapest step.
    """
    plans = list(_plans(manifest, training))
    costs = [_cost(manifest, training, plan) for plan in plans]
    fitting = [plan for plan, cost in zip(plans, costs, strict=True) if affordable(cost, most)]
    if not fitting:
        return min(zip(costs, plans, strict=True))[1] if plans else ForwardPlan((), training.directions or 1)
    return max(fitting, key=lambda plan: (_told(manifest, training, plan), len(plan.units), -plan.directions))


def planned(manifest: Manifest, training: Training, most: float) -> Training:
    """Set the number of directions of a job's settings to its plan's."""
    return replace(training, directions=forward_plan(manifest, training, most).directions)


def _plans(manifest: Manifest, training: Training) -> Iterator[ForwardPlan]:
    uses = [first_use(manifest, unit) for unit in manifest.units]
    for cut in sorted(set(uses)):
        units = tuple(number for number, use in enumerate(uses) if use >= cut)
        for count in [training.directions] if training.directions else _counts(manifest):
            yield ForwardPlan(units, count)


def _counts(manifest: Manifest) -> list[int]:
    """Return the numbers of directions that programs take, at once or in turns; simulated models take all."""
    if not manifest.directions:
        return [1 << power for power in range(MOST.bit_length())]
    return sorted({turns * count for count in manifest.directions for turns in range(1, max(MOST // count, 1) + 1)})


def _cost(manifest: Manifest, training: Training, plan: ForwardPlan) -> float:
    """Count a plan's forward passes; each turn after the first computes values behind the cut once more."""
    counted = replace(training, directions=plan.directions)
    turns = plan.directions // directions_at_once(manifest, plan.directions)
    cut = min(first_use(manifest, manifest.units[unit]) for unit in plan.units)
    return passes(kind_of(counted), counted, manifest, plan.units) + (turns - 1) * _again(manifest, cut)


def _again(manifest: Manifest, cut: int) -> float:
    """Compute the share of the blocks that the values behind a cut cost."""
    narrow = sum(1 for segment in manifest.segments[cut:] if segment.one_token)
    return share_from(manifest, cut) - (1 - _VALUES) * narrow / manifest.model.blocks


def _told(manifest: Manifest, training: Training, plan: ForwardPlan) -> float:
    """Count the units whose true gradients the estimates are worth."""
    numbers = sum(numbers_moved(manifest.units[unit], training) for unit in plan.units)
    return len(plan.units) / (1 + numbers / (plan.directions * TEXTS))
