"""Secure aggregation: the sum of a round's updates, opened, becomes the next weights.

The server and a simulated fleet, whose integers carry no masks, run the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.secagg import fixed
from edge_client.secagg.fixed import HEAD, TOLD, UNITS, Parts, Pooled
from edge_client.wire.scalars import shaped
from server.jobs.settings import JobSettings
from server.privacy.shares import share_of, wanted_in_sum
from server.secagg.opening import Unopened
from server.strategy.state import ServerState, apply_change
from server.strategy.updates import Outcome


def sizes_in_sum(manifest: Manifest, units: Sequence[int], scores: Sequence[str]) -> dict[int, int]:
    """Count the integers that each part of a device's update has: its numbers, and its weight."""
    of_units = {UNITS + unit: manifest.units[unit].size + 1 for unit in units}
    head = sum(parameter.size for parameter in manifest.head) + 1
    return {TOLD: fixed.told_size(scores), HEAD: head} | of_units


def step_of_sum(
    start: ServerState, total: Parts, count: int, scores: Sequence[str], settings: JobSettings, manifest: Manifest
) -> tuple[Outcome, Pooled]:
    """Take the server's step by the mean of a sum, of so many devices that could have been in it (`count`)."""
    change: Weights = {}
    share, wanted = share_of(settings), wanted_in_sum(settings, manifest)
    for part, parameters in _parts(manifest):
        if part in total:
            flat, weighs = fixed.decoded(total[part], count)
            if len(flat) != len(total[part]) - 1:
                raise Unopened(f"the weights of a sum come to {weighs}, which cannot be: a device is lying or broken")
            if share is not None:
                flat = share.mean(total[part], count, wanted[part])
            change |= shaped(flat, parameters)
    pooled = fixed.pooled(total[TOLD], scores)
    return Outcome(apply_change(start, change, settings, manifest), change, [pooled.report]), pooled


def _parts(manifest: Manifest) -> Iterator[tuple[int, Sequence[Parameter]]]:
    yield HEAD, manifest.head
    yield from ((UNITS + unit, one.parameters) for unit, one in enumerate(manifest.units))
