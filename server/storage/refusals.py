"""Reports that were not taken, and tasks that were given back. All of these are steps of their caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select

from server.storage.rows import Part, Refused
from server.storage.tables import refusals


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
    """A job's, or all."""
    query = select(refusals.c.code, func.count()).group_by(refusals.c.code)
    if job is not None:
        query = query.where(refusals.c.job == job)
    return dict(connection.execute(query).all())
