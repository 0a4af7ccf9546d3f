"""Look up the usual norms of a job's updates in its store."""

from __future__ import annotations

from server.storage.schema.database import Database
from server.storage.work import assignments
from server.strategy.outliers import FIRST_ROUNDS, LAST_ROUNDS, Norms, usual


def usual_in(database: Database, job: str, number: int) -> Norms:
    """Compute the usual norms of a round's updates, by its own and those of rounds before."""
    since = number - LAST_ROUNDS + 1
    with database.read() as connection:
        known = assignments.accepted_norms(connection, job, since=since, until=FIRST_ROUNDS)
    return usual(
        [norms for round_, norms in known if round_ == number],
        [norms for round_, norms in known if round_ >= since],
        [norms for round_, norms in known if round_ <= FIRST_ROUNDS],
    )
