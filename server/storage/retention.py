"""Delete old data: rows about rounds closed long ago, old entries of the audit log, cut uploads.

Rounds and their numbers stay, as do all that a job still reads: the newest rounds, the first ones (updates are compared
with those), parts whose updates are kept, and sums: refusals are counted on by code, bytes by device.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, func, insert, or_, select, update

from server.storage.files import references
from server.storage.identities.refusals import count_and_forget
from server.storage.schema.tables import (
    audit,
    jobs,
    refusals,
    rounds,
    scalars,
    summands,
    sums,
    tasks,
    traffic,
    versions,
)
from server.storage.store import Store

NEWEST = 10
"""Rounds of each job that stay, however old they are."""
_DAY = 86_400.0
_ABANDONED = 3600.0
"""Seconds without a byte after which nobody writes to a file any more; uploads are given up long before."""


def sweep(store: Store, first_rounds: int) -> None:
    """Delete what the settings no longer keep, each kind in its own transaction, lest one hold up the others."""
    now, settings = store.now(), store.settings
    old = _old_rounds(now - settings.keep_days * _DAY, first_rounds)
    with store.database.write() as connection:
        spare = _forget_parts(connection, old)
    for sha256 in spare:
        store.blobs.forget(sha256)
    store.blobs.forget_partials(_ABANDONED)
    with store.database.write() as connection:
        _sum_up_traffic(connection, old)
    with store.database.write() as connection:
        count_and_forget(connection, refusals.c.time < now - settings.keep_days * _DAY)
    with store.database.write() as connection:
        old = versions.c.created < now - settings.keep_days * _DAY
        forgotten = old, versions.c.weights.is_(None), versions.c.mirrored.is_(None)
        connection.execute(delete(versions).where(*forgotten))
    with store.database.write() as connection:
        connection.execute(delete(audit).where(audit.c.time < now - settings.keep_audit_days * _DAY))


def _old_rounds(before: float, first_rounds: int) -> Select[Any, Any]:
    """Job and number of the rounds whose details nobody reads any more."""
    return (
        select(rounds.c.job, rounds.c.number)
        .join(jobs, jobs.c.id == rounds.c.job)
        .where(
            rounds.c.state.in_(("done", "failed")),
            rounds.c.closed < before,
            rounds.c.number > first_rounds,
            rounds.c.number <= jobs.c.round - NEWEST,
        )
    )


def _forget_parts(connection: Connection, old: Select[Any, Any]) -> set[str]:
    """Updates that nothing names any more; of a round that failed they are still there."""
    gone = old.subquery()
    masked = select(summands.c.update).where(_is_in(summands.c.job, summands.c.round, gone))
    spare = {sha for sha in connection.execute(masked).scalars() if sha}
    for said in (scalars, summands, sums):
        connection.execute(delete(said).where(_is_in(said.c.job, said.c.round, gone)))
    ended = and_(_is_in(tasks.c.job, tasks.c.round, gone), tasks.c.state != "open")
    kept = references.kept_updates(connection)
    named = set(connection.execute(select(tasks.c.update).where(ended, tasks.c.update.is_not(None))).scalars())
    spared = or_(tasks.c.update.is_(None), tasks.c.update.not_in(kept))
    connection.execute(delete(tasks).where(ended, spared))
    still = select(tasks.c.update).where(tasks.c.update.in_(named))
    named |= spare
    return named - kept - references.needed_blobs(connection) - set(connection.execute(still).scalars())


def _sum_up_traffic(connection: Connection, old: Select[Any, Any]) -> None:
    """Old rounds' bytes go to round 0 of their job, device by device, so that all sums stay as they are."""
    of_rounds = _is_in(traffic.c.job, traffic.c.round, old.subquery())
    summed = (
        select(traffic.c.job, traffic.c.device, func.sum(traffic.c.up), func.sum(traffic.c.down))
        .where(of_rounds)
        .group_by(traffic.c.job, traffic.c.device)
    )
    for job, device, up, down in connection.execute(summed).all():
        whole = and_(traffic.c.job == job, traffic.c.round == 0, traffic.c.device == device)
        added = {"up": traffic.c.up + int(up), "down": traffic.c.down + int(down)}
        if not connection.execute(update(traffic).where(whole).values(added)).rowcount:
            row = {"job": job, "round": 0, "device": device, "up": int(up), "down": int(down)}
            connection.execute(insert(traffic).values(row))
    connection.execute(delete(traffic).where(of_rounds))


def _is_in(job: Any, number: Any, gone: Any) -> ColumnElement[bool]:
    return select(gone.c.job).where(gone.c.job == job, gone.c.number == number).exists()
