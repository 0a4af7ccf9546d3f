"""Numbers about rounds: losses, accuracies, durations. All of these are steps of their caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, and_, delete, func, insert, select

from server.storage.schema.rows import Metric, Round
from server.storage.schema.tables import metrics


def add(connection: Connection, round_: Round, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        connection.execute(insert(metrics).values(job=round_.job, round=round_.number, name=name, value=float(value)))


def replace(connection: Connection, round_: Round, values: Mapping[str, float]) -> None:
    """Add metrics in place of what was known under their names."""
    same = metrics.c.job == round_.job, metrics.c.round == round_.number, metrics.c.name.in_(values)
    connection.execute(delete(metrics).where(*same))
    add(connection, round_, values)


def add_before(connection: Connection, job: str, values: Mapping[str, float]) -> None:
    """Add metrics that are known before the first round, as of round 0."""
    for name, value in values.items():
        connection.execute(insert(metrics).values(job=job, round=0, name=name, value=value))


def course(connection: Connection, job: str, name: str, among: tuple[str, float] | None = None) -> list[float]:
    """Return one metric's values, round after round; `among` keeps the rounds in which another is large enough."""
    query = select(metrics.c.value).where(metrics.c.job == job, metrics.c.name == name).order_by(metrics.c.round)
    if among is not None:
        other, least = among
        large = select(metrics.c.round).where(metrics.c.job == job, metrics.c.name == other, metrics.c.value >= least)
        query = query.where(metrics.c.round.in_(large))
    return list(connection.execute(query).scalars())


def best_round(connection: Connection, job: str, name: str) -> int | None:
    """Find the last round that has the largest value of a metric: few held-out rows cannot tell many rounds apart."""
    query = select(metrics.c.round).where(metrics.c.job == job, metrics.c.name == name, metrics.c.round > 0)
    best = query.order_by(metrics.c.value.desc(), metrics.c.round.desc())
    return connection.execute(best.limit(1)).scalar_one_or_none()


def of_round(connection: Connection, job: str, number: int) -> dict[str, float]:
    query = select(metrics.c.name, metrics.c.value).where(metrics.c.job == job, metrics.c.round == number)
    return {row.name: row.value for row in connection.execute(query)}


def newest(connection: Connection, job: str) -> dict[str, float]:
    """Return each metric's value in the last round that has it."""
    last = (
        select(metrics.c.name, func.max(metrics.c.round).label("round"))
        .where(metrics.c.job == job)
        .group_by(metrics.c.name)
        .subquery()
    )
    query = (
        select(metrics.c.name, metrics.c.value)
        .join(last, and_(metrics.c.name == last.c.name, metrics.c.round == last.c.round))
        .where(metrics.c.job == job)
    )
    return {row.name: row.value for row in connection.execute(query)}


def after(connection: Connection, job: str, number: int) -> list[Metric]:
    """Return the metrics of the rounds after one."""
    query = select(metrics.c.round, metrics.c.name, metrics.c.value)
    of_job = metrics.c.job == job, metrics.c.round > number
    ordered = query.where(*of_job).order_by(metrics.c.round, metrics.c.name)
    return [Metric(**row) for row in connection.execute(ordered).mappings()]
