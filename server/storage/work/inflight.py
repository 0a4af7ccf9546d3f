"""Parts that outlive the round they were given out in (schedule buffered). Steps of their caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, func, select, update

from server.storage.schema.rows import Round
from server.storage.schema.tables import tasks


def carry_over(connection: Connection, job: str, number: int) -> None:
    """Move all open assignments of a job to this round."""
    connection.execute(update(tasks).where(tasks.c.job == job, tasks.c.state == "open").values(round=number))


def end_stale(connection: Connection, job: str, oldest: int, *, reason: str, now: float) -> None:
    """End assignments that began with a version before the oldest."""
    stale = tasks.c.job == job, tasks.c.state == "open", tasks.c.base < oldest
    connection.execute(update(tasks).where(*stale).values(state="expired", ended=now, reason=reason))


def are_overdue(connection: Connection, job: str, now: float) -> bool:
    """Tell whether the deadline of any open assignment has passed."""
    query = select(tasks.c.id).where(tasks.c.job == job, tasks.c.state == "open", tasks.c.until <= now).limit(1)
    return connection.scalar(query) is not None


def end_overdue(connection: Connection, job: str, *, reason: str, now: float) -> None:
    overdue = tasks.c.job == job, tasks.c.state == "open", tasks.c.until <= now
    connection.execute(update(tasks).where(*overdue).values(state="expired", ended=now, reason=reason))


def count_open(connection: Connection, round_: Round) -> int:
    of_round = tasks.c.job == round_.job, tasks.c.round == round_.number
    return connection.scalar(select(func.count()).where(*of_round, tasks.c.state == "open")) or 0


def count_given(connection: Connection, job: str, since: int) -> dict[int, int]:
    """Count by slot the assignments since a round that are open or accepted."""
    query = (
        select(tasks.c.slot, func.count())
        .where(tasks.c.job == job, tasks.c.round >= since, tasks.c.state.in_(("open", "accepted")))
        .group_by(tasks.c.slot)
    )
    return dict(connection.execute(query).all())
