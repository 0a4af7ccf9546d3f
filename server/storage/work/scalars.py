"""Mode iteration: the reports of the open iteration. All of these are steps of their caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, and_, delete, func, insert, select

from server.storage.schema.rows import Assignment, Reported, Round
from server.storage.schema.tables import scalars, tasks
from server.storage.work.assignments import assignment_in


def find(connection: Connection, assignment: Assignment, iteration: int) -> bytes | None:
    query = select(scalars.c.report).where(scalars.c.task == assignment.id, scalars.c.iteration == iteration)
    known = connection.scalar(query)
    return None if known is None else bytes(known)


def add(connection: Connection, assignment: Assignment, iteration: int, data: bytes) -> None:
    connection.execute(
        insert(scalars).values(
            task=assignment.id, iteration=iteration, job=assignment.job, round=assignment.round, report=data
        )
    )


def count(connection: Connection, round_: Round) -> int:
    query = select(func.count()).where(
        scalars.c.job == round_.job, scalars.c.round == round_.number, scalars.c.iteration == round_.iteration
    )
    return connection.scalar(query) or 0


def reported(connection: Connection, round_: Round) -> list[Reported]:
    """List who reported the open iteration, in the order of their slots."""
    joined = and_(scalars.c.task == tasks.c.id, scalars.c.iteration == round_.iteration)
    query = (
        select(tasks, scalars.c.report.label("data"))
        .join(scalars, joined)
        .where(tasks.c.job == round_.job, tasks.c.round == round_.number)
        .order_by(tasks.c.slot, tasks.c.id)
    )
    return [Reported(assignment_in(row), bytes(row["data"])) for row in connection.execute(query).mappings()]


def forget(connection: Connection, round_: Round) -> None:
    """Drop the reports of all iterations of a round."""
    connection.execute(delete(scalars).where(scalars.c.job == round_.job, scalars.c.round == round_.number))
