"""Open the sum of a round: read the masked updates, take their masks off, and have the strategy step by the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge_client.secagg.fixed import Pooled
from edge_client.secagg.member import joined_size, parted
from edge_client.secagg.streams import TAG
from server.jobs.job import Job
from server.rounds.outcome.usual import usual_in
from server.rounds.secrecy.summing import arrangement_of, carried, dealt_in, openings_in, scores_of
from server.secagg.arrangement import Arrangement
from server.secagg.opening import Total, Unopened, unmask
from server.storage.schema.rows import Round
from server.storage.store import Store
from server.storage.work import sums
from server.strategy.outliers import beyond, norms
from server.strategy.summed import sizes_in_sum, step_of_sum
from server.strategy.updates import Outcome


def outcome_of(store: Store, job: Job, round_: Round) -> tuple[Outcome, dict[str, float]]:
    """Compute the next weights of an opened sum, and the number of devices in it."""
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
        sizes = sizes_in_sum(manifest, carried(store, job, summand.place), scores)
        data = store.blobs.read(summand.update or "")
        total.add(parted(data[tags_size(arrangement, standing.sharers, summand.place) :], sizes))
    context = arrangement.context(job.id, round_.number)
    unmask(total.parts, arrangement, context, dealt_in(standing, known), survivors, openings_in(known))
    start = store.models.load(job, round_.version)
    outcome, pooled = step_of_sum(start, total.parts, len(arrangement.entrants), scores, job.settings, manifest)
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
    """Return the numbers of a sum that the one report of all does not have."""
    beside: dict[str, float] = {"reports": pooled.clients}
    return beside | ({"evaluated": pooled.evaluated} if pooled.evaluated else {})


def tags_size(arrangement: Arrangement, sharers: Sequence[int], place: int) -> int:
    """Count the bytes before the parts of an update."""
    there = set(sharers)
    return TAG * sum(peer in there for peer in arrangement.peers(place))


def update_size(arrangement: Arrangement, sharers: Sequence[int], place: int, sizes: dict[int, int]) -> int:
    return tags_size(arrangement, sharers, place) + joined_size(sizes)
