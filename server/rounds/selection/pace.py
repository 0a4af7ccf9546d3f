"""How far a device can go in the time that a round leaves it, by its last part of the same job."""

from __future__ import annotations

from edge_client.estimators.registry import kind_of
from server.jobs.job import Job
from server.jobs.passes import passes
from server.rounds.selection.fleet import needs_of
from server.storage.store import Store
from server.storage.work import assignments

SHARE_OF_DEADLINE = 0.5
"""Of a round's time, what training is planned to take: the rest is for bytes on their way and for what else runs."""
LESS_AFTER = 0.5
"""What of a step's forward passes is asked for again where time ran out."""


def most_passes(store: Store, job: Job, device: str) -> float | None:
    """The forward passes that a device's steps may take; None where there is no choice, or nothing known of it."""
    if not needs_of(store, job).has_choice:
        return None
    with store.database.read() as connection:
        last = assignments.last_timed(connection, job.id, device)
    if last is None or (last.sent is None and last.state == "accepted"):  # added in secret, its time with it
        return None
    variant = last.training(job.settings.training)
    took = passes(kind_of(variant), variant, store.bundles.manifest(job.bundle), last.units)
    if last.sent is None:
        return LESS_AFTER * took
    seconds = last.sent.report.seconds
    return took * SHARE_OF_DEADLINE * job.settings.deadline / seconds if seconds else None
