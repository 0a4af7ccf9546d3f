"""Reports that were not taken, and tasks that were given back. All of these are steps of their caller's transaction."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from server.storage.schema.rows import Assignment, Refused
from server.storage.schema.tables import refusals, refused_before

A_MINUTE = 30
"""Refusals of a device that are kept in a minute: one that works has one a round at most, and rounds take seconds."""
MOST_KEPT = 500
"""Refusals kept of a device: older ones are counted by job and code."""
_MINUTE = 60.0


def wait_of(connection: Connection, device: str, now: float) -> float | None:
    """Return the seconds until another refusal of a device may be written; None where it may now."""
    newest = select(refusals.c.time).where(refusals.c.device == device, refusals.c.time > now - _MINUTE)
    times = list(connection.execute(newest.order_by(refusals.c.time.desc()).limit(A_MINUTE)).scalars())
    return times[-1] + _MINUTE - now if len(times) == A_MINUTE else None


def add(connection: Connection, assignment: Assignment, device: str, code: str, detail: str, now: float) -> None:
    """Note what was refused of a device for a part, which may be another's, or why it gave its own back."""
    before = select(refusals.c.id).where(refusals.c.device == device).order_by(refusals.c.id.desc())
    if (oldest := connection.scalar(before.offset(MOST_KEPT - 2).limit(1))) is not None:
        count_and_forget(connection, and_(refusals.c.device == device, refusals.c.id < oldest))
    connection.execute(
        insert(refusals).values(
            time=now,
            device=device,
            job=assignment.job,
            round=assignment.round,
            task=assignment.id,
            code=code,
            detail=detail,
        )
    )


def count_and_forget(connection: Connection, which: ColumnElement[bool]) -> None:
    """Keep how many are forgotten, by job and code: counters must not go down."""
    job = func.coalesce(refusals.c.job, "")
    counted = select(job, refusals.c.code, func.count()).where(which).group_by(job, refusals.c.code)
    for of_job, code, count in connection.execute(counted).all():
        known = and_(refused_before.c.job == of_job, refused_before.c.code == code)
        added = update(refused_before).where(known).values(count=refused_before.c.count + count)
        if not connection.execute(added).rowcount:
            connection.execute(insert(refused_before).values(job=of_job, code=code, count=count))
    connection.execute(delete(refusals).where(which))


def newest_first(connection: Connection, job: str, limit: int) -> list[Refused]:
    query = select(refusals).where(refusals.c.job == job).order_by(refusals.c.id.desc()).limit(limit)
    return [Refused(**row) for row in connection.execute(query).mappings()]


def count_by_code(connection: Connection, job: str | None = None) -> dict[str, int]:
    """Count refusals by code, of a job or of all, those too of which only the number is kept."""
    kept = select(refusals.c.code, func.count()).group_by(refusals.c.code)
    before = select(refused_before.c.code, func.sum(refused_before.c.count)).group_by(refused_before.c.code)
    if job is not None:
        kept = kept.where(refusals.c.job == job)
        before = before.where(refused_before.c.job == job)
    counts = Counter[str]()
    for query in (kept, before):
        for code, count in connection.execute(query):
            counts[code] += int(count)
    return dict(counts)
