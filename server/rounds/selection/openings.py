"""When a job's next round opens, and which of the devices that wait are told to come back then."""

from __future__ import annotations

import random
from typing import NamedTuple

from sqlalchemy import Connection

from server.jobs.job import Job
from server.storage.identities.presence import Presence
from server.storage.work import rounds

_TOLD = 1.5
"""Devices that are told to come for each that a round wants: some are gone by then."""
_FEW = 50
"""Devices that may always be told: all of a small fleet."""
_SHARE_OF_RATE = 0.25
"""Of the check-ins that the server wants, at most those of devices that were told to come."""
_SPREAD = 1.0
"""Seconds over which they come at least."""
_OVERDUE = 0.25
"""Of the time that a round is late by now, what a device that came for the next one waits again."""


class Opening(NamedTuple):
    """The next round of a job."""

    wanted: int
    """Devices that it wants."""
    lasts: float
    """Seconds from one opening to the next."""
    at: float
    """About when it is."""


def opening_after(connection: Connection, job: Job, number: int, now: float) -> Opening | None:
    """Tell when the round after one opens, by how long the last took, or this one up to now; None before it began."""
    known = rounds.since(connection, job.id, number - 1)
    last, this = known.get(number - 1), known.get(number)
    if this is None or this.started is None:
        return None
    if last is None or last.closed is None or last.started is None:
        return Opening(job.settings.per_round, now - this.started, this.closed or this.started)
    lasts = last.closed - last.started
    return Opening(job.settings.per_round, lasts, this.closed or this.started + lasts)


def wait_until(opening: Opening, presence: Presence, now: float) -> float | None:
    """Seconds until an opening for a device that is told to come; None for the others, who wait as all do.

    So many are told as the next round wants, of all who ask while one lasts: each draws its lot, so that processes need
    not count together. Who came too early draws again.
    """
    most = presence.rate * _SHARE_OF_RATE
    told = min(max(_TOLD * opening.wanted, _FEW), most * opening.lasts)
    if random.random() * presence.flow * opening.lasts >= told:  # noqa: S311 -- a lot, no secret
        return None
    spread = max(_SPREAD, _TOLD * opening.wanted / most)
    return max(opening.at - now, _OVERDUE * (now - opening.at)) + random.uniform(0.0, spread)  # noqa: S311
