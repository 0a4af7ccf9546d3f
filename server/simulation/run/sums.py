"""A simulated sum in secret: the integers that devices would add, without the masks that cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from edge_client.bundle.manifest import Manifest
from edge_client.secagg.adding import changes, noisy, unmasked
from edge_client.secagg.fixed import Pooled
from edge_client.tasks.registry import task_named
from edge_client.wire.protocol import Report
from server.jobs.settings import JobSettings
from server.privacy.noise import key_of
from server.privacy.shares import share_of
from server.secagg.opening import Total
from server.simulation.compute.work import ClientPart, Trained
from server.simulation.plan import Plan
from server.strategy.mean import largest_weight
from server.strategy.state import ServerState, apply_change
from server.strategy.summed import step_of_sum
from server.strategy.updates import Outcome


def summed(
    plan: Plan,
    settings: JobSettings,
    manifest: Manifest,
    start: ServerState,
    both: Sequence[tuple[ClientPart, Trained]],
    members: int,
) -> Outcome:
    """Simulate a secure sum of the round's members that are in it, each with its share of the noise."""
    share = share_of(settings)
    if share is not None and members < share.least:  # by chance fewer may come than a sum is opened of
        return Outcome(apply_change(start, {}, settings, manifest), {}, [])
    kind = task_named(plan.task)
    scores = [score.name for score in kind.scores if score.name != kind.counted]
    reports = [Report(**one.report) for _, one in both]
    cap = math.ceil(largest_weight([one.examples for one in reports], settings.weight_bound))
    total = Total()
    for (member, one), report in zip(both, reports, strict=True):
        units = member.task.units
        change = changes(manifest, units, one.update, start.weights)
        if share is None:
            total.add(unmasked(change, units, report, cap, members, scores))
        else:
            secret = key_of("simulation", plan.seed, start.version, member.client)
            total.add(noisy(change, units, report, share, secret, members, scores))
    outcome, pooled = step_of_sum(start, total.parts, members, scores, settings, manifest)
    return replace(outcome, reports=_each(pooled) if share is None else reports)


def _each(pooled: Pooled) -> list[Report]:
    """Split a sum into as many reports as are in it, which together add up to it."""
    rest = replace(pooled.report, examples=1, held_back=0, right_global=0, right_personal=0)
    first = replace(pooled.report, examples=pooled.report.examples - pooled.clients + 1)
    return [first, *[rest] * (pooled.clients - 1)]
