"""Count how often devices took part in private jobs, which their budgets pay for. Rows outlive those of old rounds.

Every function is a step of its caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, insert, select, update

from server.storage.schema.tables import participations


def add(connection: Connection, job: str, devices: Iterable[str]) -> None:
    """Once more, for each of them."""
    for device in devices:
        of_device = participations.c.job == job, participations.c.device == device
        more = update(participations).where(*of_device).values(times=participations.c.times + 1)
        if not connection.execute(more).rowcount:
            connection.execute(insert(participations).values(job=job, device=device, times=1))


def of(connection: Connection, job: str, device: str) -> int:
    query = select(participations.c.times).where(participations.c.job == job, participations.c.device == device)
    return connection.scalar(query) or 0


def most(connection: Connection, job: str) -> int:
    """Return the number of times that the most frequent device took part."""
    return connection.scalar(select(func.max(participations.c.times)).where(participations.c.job == job)) or 0


def at_least(connection: Connection, job: str, times: int) -> set[str]:
    """List devices that took part so often."""
    query = select(participations.c.device).where(participations.c.job == job, participations.c.times >= times)
    return set(connection.execute(query).scalars())
