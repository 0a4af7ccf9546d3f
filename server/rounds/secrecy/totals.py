"""What a sum comes to: the mean change of each unit, and what all reports say together.

A simulated fleet goes through the same lines, from integers that carry no masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.secagg import fixed
from edge_client.secagg.fixed import HEAD, TOLD, UNITS, Parts, Pooled
from edge_client.secagg.member import joined_size, parted
from edge_client.secagg.streams import TAG
from edge_client.wire.scalars import shaped
from server.jobs.job import Job
from server.jobs.settings import JobSettings
from server.privacy.shares import share_of, wanted_in_sum
from server.rounds.outcome.usual import usual_in
from server.rounds.secrecy.summing import arrangement_of, carried, dealt_in, openings_in, scores_of
from server.secagg.arrangement import Arrangement
from server.secagg.opening import Total, Unopened, unmask
from server.storage.schema.rows import Round
from server.storage.store import Store
from server.storage.work import sums
from server.strategy.outliers import beyond, norms
from server.strategy.state import ServerState, apply_change
from server.strategy.updates import Outcome


def sizes_of(manifest: Manifest, units: Sequence[int], scores: Sequence[str]) -> dict[int, int]:
    """How many integers each part of a device's update has: its numbers, and its weight."""
    of_units = {UNITS + unit: manifest.units[unit].size + 1 for unit in units}
    head = sum(parameter.size for parameter in manifest.head) + 1
    return {TOLD: fixed.told_size(scores), HEAD: head} | of_units


def outcome_of(store: Store, job: Job, round_: Round) -> tuple[Outcome, dict[str, float]]:
    """The next weights of an opened sum, and how many devices are in it."""
    with store.database.read() as connection:
        standing = sums.find(connection, round_)
        known = sums.summands_of(connection, round_)
    if standing is None or standing.reason:
        raise Unopened(standing.reason if standing else "nobody began to add anything")
    arrangement, manifest = arrangement_of(store, job, standing, known), store.bundles.manifest(job.bundle)
    scores, survivors = scores_of(store, job), set(standing.survivors)
    total = Total()
    inside = [summand for summand in known if summand.place in survivors]
    for summand in inside:
        sizes = sizes_of(manifest, carried(store, job, summand.place), scores)
        data = store.blobs.whole(summand.update or "").read_bytes()
        total.add(parted(data[tags_size(arrangement, standing.sharers, summand.place) :], sizes))
    context = arrangement.context(job.id, round_.number)
    unmask(total.parts, arrangement, context, dealt_in(standing, known), survivors, openings_in(known))
    start = store.models.load(job, round_.version)
    outcome, pooled = mean_of_sum(start, total.parts, len(arrangement.entrants), scores, job.settings, manifest)
    if pooled.clients != len(inside):
        raise Unopened(f"the sum of {len(inside)} devices says it is of {pooled.clients}: a device is lying or broken")
    moved_to = {name: start.weights[name] + change for name, change in outcome.change.items()}
    lengths = norms(moved_to, start.weights, manifest.head_names, manifest.units)
    usual = {} if job.settings.is_private else usual_in(store.database, job.id, round_.number)  # the clip bounds it
    if why := beyond(lengths, usual, job.settings.norm_bound):
        raise Unopened(f"the sum is not taken: {why}")
    parts = tuple(summand.task for summand in inside)
    return replace(outcome, summed=parts, lengths=lengths), _beside(pooled)


def _beside(pooled: Pooled) -> dict[str, float]:
    """Read the numbers of a sum that the one report of all does not say."""
    beside: dict[str, float] = {"reports": pooled.clients}
    return beside | ({"evaluated": pooled.evaluated} if pooled.evaluated else {})


def tags_size(arrangement: Arrangement, sharers: Sequence[int], place: int) -> int:
    """Bytes of what stands before the parts of an update."""
    there = set(sharers)
    return TAG * sum(peer in there for peer in arrangement.peers(place))


def update_size(arrangement: Arrangement, sharers: Sequence[int], place: int, sizes: dict[int, int]) -> int:
    return tags_size(arrangement, sharers, place) + joined_size(sizes)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def mean_of_sum(
    start: ServerState, total: Parts, count: int, scores: Sequence[str], settings: JobSettings, manifest: Manifest
) -> tuple[Outcome, Pooled]:
    """Take the server's step by the mean of a sum, of so many devices that could have been in it."""
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
