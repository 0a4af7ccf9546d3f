"""Look up the usual norms of a job's updates in its store."""

from __future__ import annotations

import time

from server.storage.schema.database import Database
from server.storage.work import assignments
from server.strategy.outliers import FIRST_ROUNDS, LAST_ROUNDS, Norms, usual

_MANY = 100
"""Updates whose medians one more hardly moves."""
_SECONDS = 1.0


def usual_in(database: Database, job: str, number: int) -> Norms:
    """Compute how far a round's updates usually go, by its own and those of rounds before."""
    return _usual(database, job, number)[0]


def _usual(database: Database, job: str, number: int) -> tuple[Norms, int]:
    """Compute the same, with the number of updates that it is of."""
    since = number - LAST_ROUNDS + 1
    with database.read() as connection:
        known = assignments.accepted_norms(connection, job, since=since, until=FIRST_ROUNDS)
    medians = usual(
        [norms for round_, norms in known if round_ == number],
        [norms for round_, norms in known if round_ >= since],
        [norms for round_, norms in known if round_ <= FIRST_ROUNDS],
    )
    return medians, len(known)


class Usual:
    """The usual norms of open rounds' updates; where many are known they are not computed anew for each that comes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[str, tuple[int, float, Norms]] = {}

    def about(self, job: str, number: int) -> Norms:
        """Return the usual norms as they were within the last second."""
        kept = self._kept.get(job)
        if kept is None or kept[0] != number or kept[1] <= time.monotonic():
            medians, count = _usual(self._database, job, number)
            kept = number, time.monotonic() + _SECONDS if count >= _MANY else 0.0, medians
            self._kept[job] = kept
        return kept[2]
