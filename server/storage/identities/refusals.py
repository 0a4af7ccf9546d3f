"""Reports that were not taken, and tasks that were given back. All of these are steps of their caller's transaction."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, func, insert, select

from server.storage.schema.rows import Part, Refused
from server.storage.schema.tables import refusals, refused_before


def add(connection: Connection, part: Part, device: str, code: str, detail: str, now: float) -> None:
    """What a device sent for a part, which may be another's, or why it gave its own back."""
    connection.execute(
        insert(refusals).values(
            time=now,
            device=device,
            job=part.job,
            round=part.round,
            task=part.id,
            code=code,
            detail=detail,
        )
    )


def newest_first(connection: Connection, job: str, limit: int) -> list[Refused]:
    query = select(refusals).where(refusals.c.job == job).order_by(refusals.c.id.desc()).limit(limit)
    return [Refused(**row) for row in connection.execute(query).mappings()]


def count_by_code(connection: Connection, job: str | None = None) -> dict[str, int]:
    """A job's, or all; those too of which no more than their number is known."""
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
