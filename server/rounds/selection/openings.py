"""Estimate when a job's next round opens, and choose the waiting devices that come back then."""

from __future__ import annotations

import random
from typing import NamedTuple

from sqlalchemy import Connection

from server.jobs.job import Job
from server.storage.identities.presence import Presence
from server.storage.work import rounds

_TOLD = 1.5
"""The devices that are asked to come for each that a round wants: some are gone by then."""
_FEW = 50
"""The number of devices that may always be asked: all of a small fleet."""
_SHARE_OF_RATE = 0.25
"""The most of the server's check-ins that devices asked to come may take."""
_SPREAD = 1.0
"""The least seconds over which they come."""
_OVERDUE = 0.25
"""The share of a round's delay so far that a device that came for the next one waits again."""


class Opening(NamedTuple):
    """The next round of a job."""

    wanted: int
    """The number of devices that it wants."""
    lasts: float
    """The seconds from one opening to the next."""
    at: float
    """The estimated time of the opening."""


def opening_after(connection: Connection, job: Job, number: int, now: float) -> Opening | None:
    """Estimate when the round after one opens, by how long the last took, or this one so far; None before it began."""
    known = rounds.since(connection, job.id, number - 1)
    last, this = known.get(number - 1), known.get(number)
    if this is None or this.started is None:
        return None
    if last is None or last.closed is None or last.started is None:
        return Opening(job.settings.per_round, now - this.started, this.closed or this.started)
    lasts = last.closed - last.started
    return Opening(job.settings.per_round, lasts, this.closed or this.started + lasts)


def wait_until(opening: Opening, presence: Presence, now: float) -> float | None:
    """Return the seconds until an opening for a device that is asked to come; None for the others, who wait as all do.

    As many are asked as the next round wants, of all who check in while one lasts: each draws its lot, so that
    processes need not count together. Who came too early draws again.
    """
    most = presence.rate * _SHARE_OF_RATE
    told = min(max(_TOLD * opening.wanted, _FEW), most * opening.lasts)
    if random.random() * presence.flow * opening.lasts >= told:  # noqa: S311 -- a lot, no secret
        return None
    spread = max(_SPREAD, _TOLD * opening.wanted / most)
    return max(opening.at - now, _OVERDUE * (now - opening.at)) + random.uniform(0.0, spread)  # noqa: S311
