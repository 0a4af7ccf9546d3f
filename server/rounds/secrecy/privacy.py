"""Account for a private job's budget, as rounds spend it.

A device pays for each round whose weights were published with its update in them, in the transaction that publishes
them: nothing is lost or counted twice, whatever crashes. Results of a round that failed are never published.
Where devices add the noise, the server learns no more than others either: they pay when it may open their sum,
even if the round fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from server.jobs.job import Job
from server.privacy.accountant import epsilon_of
from server.privacy.budget import mechanism_of
from server.storage.identities import devices, participations
from server.storage.schema.rows import Round
from server.storage.store import Store
from server.storage.work import assignments, sums

FLEET_SECONDS = 86_400.0
"""The seconds without a check-in after which a device no longer counts as one of the fleet."""


def spend(connection: Connection, job: Job, round_: Round) -> dict[str, float]:
    """Charge a published round's devices, and return the budget that is spent."""
    if not job.settings.secure_aggregation:
        participations.add(connection, job.id, assignments.accepted_devices(connection, round_))
    return {"epsilon": spent(connection, job)}


def pay_for_sum(connection: Connection, job: Job, round_: Round, places: Sequence[int]) -> None:
    """Charge the devices of these slots, which are about to open their sum."""
    if job.settings.is_private:
        participations.add(connection, job.id, sums.devices_of(connection, round_, places))


def spent(connection: Connection, job: Job) -> float:
    """Compute the epsilon of the device that took part most often."""
    settings = job.settings
    assert settings.privacy_noise is not None  # it was settled when the job was made
    return epsilon_of(settings.privacy_noise, settings.privacy_delta, participations.most(connection, job.id))


def why_spent(connection: Connection, job: Job, now: float) -> str | None:
    """Say why a job ends when too few devices have budget left for a round; None before."""
    done = participations.at_least(connection, job.id, _most_times(job))
    if not done:
        return None
    here = devices.ids_heard_since(connection, now - FLEET_SECONDS)
    if len(here - done) >= min(job.settings.fewest, (len(here) + 1) // 2):
        return None
    return f"its privacy budget is spent: {_in_words(job, len(done))}, epsilon {spent(connection, job):.2f}"


def _in_words(job: Job, count: int) -> str:
    most = _most_times(job)
    who = "1 device has" if count == 1 else f"{count} devices have"
    return f"{who} taken part {most} time{'' if most == 1 else 's'}"


def has_paid_all(connection: Connection, job: Job, device: str) -> str | None:
    """Say why a device may not take part in a private job any more; None if it may."""
    if not job.settings.is_private or participations.of(connection, job.id, device) < _most_times(job):
        return None
    most = _most_times(job)
    return (
        f"{job.name} has had this device {most} time{'' if most == 1 else 's'}, as often as its privacy budget allows"
    )


def clip_for(store: Store, job: Job, version: int) -> float | None:
    """Return the norm to which an update is clipped that starts from a version; None if the job is not private."""
    if not job.settings.is_private:
        return None
    return mechanism_of(job.settings).clip_at(store.models.load(job, version).clip)


def _most_times(job: Job) -> int:
    return job.settings.privacy_times or job.settings.rounds
