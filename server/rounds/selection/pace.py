"""Limit a device's forward passes by the time that a round leaves it."""

from __future__ import annotations

from edge_client.estimators.registry import kind_of
from server.jobs.job import Job
from server.policy.pace import passes_in_time
from server.policy.passes import passes
from server.rounds.selection.fleet import needs_of
from server.storage.store import Store
from server.storage.work import assignments


def most_passes(store: Store, job: Job, device: str) -> float | None:
    """Return the forward passes that a device's steps may take; None if there is no choice, or nothing is known."""
    if not needs_of(store, job).has_choice:
        return None
    with store.database.read() as connection:
        last = assignments.last_timed(connection, job.id, device)
    if last is None or (last.sent is None and last.state == "accepted"):  # added in secret, its time with it
        return None
    variant = last.training(job.settings.training)
    took = passes(kind_of(variant), variant, store.bundles.manifest(job.bundle), last.units)
    return passes_in_time(took, last.sent.report.seconds if last.sent else None, job.settings.deadline)
