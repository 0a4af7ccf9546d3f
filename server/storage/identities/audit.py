"""The audit log: who did what."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select

from server.storage.schema.rows import Deed
from server.storage.schema.tables import audit


def add(connection: Connection, now: float, actor: str, action: str, subject: str, detail: str) -> None:
    values = {"time": now, "actor": actor, "action": action, "subject": subject[:200], "detail": detail}
    connection.execute(insert(audit).values(values))


def newest_first(connection: Connection, limit: int) -> list[Deed]:
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    return [Deed(**row) for row in connection.execute(query).mappings()]


def of_subject(connection: Connection, subject: str, limit: int) -> list[Deed]:
    """List what was done to one thing, the newest first."""
    query = select(audit).where(audit.c.subject == subject).order_by(audit.c.id.desc()).limit(limit)
    return [Deed(**row) for row in connection.execute(query).mappings()]


def times(connection: Connection, actor: str, actions: Sequence[str], since: float) -> list[float]:
    """Return the times at which somebody did one of these actions, the oldest first."""
    query = select(audit.c.time).where(audit.c.action.in_(actions), audit.c.actor == actor, audit.c.time > since)
    return list(connection.execute(query.order_by(audit.c.time)).scalars())


def count(connection: Connection, actor: str, actions: Sequence[str], since: float) -> int:
    query = select(func.count()).where(audit.c.action.in_(actions), audit.c.actor == actor, audit.c.time > since)
    return connection.scalar(query) or 0
