"""What administrators see of jobs, rounds and refusals."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from sqlalchemy import and_, func, select

from server.jobs.jobs import Job, JobSettings
from server.storage.store import Store
from server.storage.tables import audit, metrics, refusals, rounds, scalars, tasks, traffic


class Progress(BaseModel):
    """The newest round."""

    number: int
    state: str
    iteration: int
    wanted: int
    training: int
    """Devices with an open task."""
    reported: int
    deadline: float | None


class JobView(BaseModel):
    """A job as it stands."""

    id: str
    name: str
    bundle: str
    state: str
    reason: str
    version: int
    done: int
    """Rounds that moved the weights."""
    created: float
    ended: float | None
    settings: JobSettings
    progress: Progress | None
    metrics: dict[str, float]
    """Of the newest round that has them."""
    refused: dict[str, int]
    """Updates not taken, by code."""
    up: int
    down: int
    """Bytes that devices sent and fetched, as of some seconds ago."""


class RoundView(BaseModel):
    """A round, and what became of the devices in it."""

    number: int
    state: str
    version: int
    opened: float
    started: float | None
    closed: float | None
    result: dict[str, Any] | None
    tasks: dict[str, int]


class MetricView(BaseModel):
    """One number about one round."""

    round: int
    name: str
    value: float


class TrafficView(BaseModel):
    """What a device sent and fetched in a round; round 0 is the bundle."""

    round: int
    device: str
    up: int
    down: int


class RoundTrafficView(BaseModel):
    """What all devices sent and fetched in a round."""

    round: int
    up: int
    down: int


class RefusalView(BaseModel):
    """An update that was not taken."""

    id: int
    time: float
    round: int | None
    device: str
    task: str | None
    code: str
    detail: str


class AuditView(BaseModel):
    """Who did what."""

    time: float
    actor: str
    action: str
    subject: str
    detail: str


def job(store: Store, job: Job) -> JobView:
    rounds_ = (
        select(metrics.c.name, func.max(metrics.c.round).label("round"))
        .where(metrics.c.job == job.id)
        .group_by(metrics.c.name)
        .subquery()
    )
    newest = select(metrics.c.name, metrics.c.value).join(
        rounds_, and_(metrics.c.name == rounds_.c.name, metrics.c.round == rounds_.c.round)
    )
    moved = select(func.sum(traffic.c.up), func.sum(traffic.c.down)).where(traffic.c.job == job.id)
    counted = (
        select(refusals.c.code, func.count().label("total")).where(refusals.c.job == job.id).group_by(refusals.c.code)
    )
    with store.database.read() as connection:
        values = {row.name: row.value for row in connection.execute(newest.where(metrics.c.job == job.id))}
        up, down = connection.execute(moved).one()
        refused = {row.code: row.total for row in connection.execute(counted)}
    return JobView(
        id=job.id,
        name=job.name,
        bundle=job.bundle,
        state=job.state,
        reason=job.reason,
        version=job.version,
        done=job.done,
        created=job.created,
        ended=job.ended,
        settings=job.settings,
        progress=_progress(store, job),
        metrics=values,
        refused=refused,
        up=int(up or 0),
        down=int(down or 0),
    )


def _progress(store: Store, job: Job) -> Progress | None:
    newest = select(rounds).where(rounds.c.job == job.id).order_by(rounds.c.number.desc()).limit(1)
    with store.database.read() as connection:
        row = connection.execute(newest).one_or_none()
        if row is None:
            return None
        of_iteration = select(func.count()).where(
            scalars.c.job == job.id, scalars.c.round == row.number, scalars.c.iteration == row.iteration
        )
        reported = connection.scalar(of_iteration) or 0
    counts = _counts(store, job, [row.number])[row.number]
    if job.settings.training.mode == "epoch" or row.state != "open":
        reported = counts.get("accepted", 0)
    return Progress(
        number=row.number,
        state=row.state,
        iteration=row.iteration,
        wanted=job.settings.per_round,
        training=counts.get("open", 0),
        reported=reported,
        deadline=row.deadline,
    )


def _counts(store: Store, job: Job, numbers: list[int]) -> dict[int, dict[str, int]]:
    """Tasks by state, for each round."""
    query = (
        select(tasks.c.round, tasks.c.state, func.count())
        .where(tasks.c.job == job.id, tasks.c.round.in_(numbers))
        .group_by(tasks.c.round, tasks.c.state)
    )
    found: dict[int, dict[str, int]] = {number: {} for number in numbers}
    with store.database.read() as connection:
        for number, state, count in connection.execute(query):
            found[number][state] = count
    return found


def rounds_of(store: Store, job: Job, before: int | None, limit: int) -> list[RoundView]:
    query = select(rounds).where(rounds.c.job == job.id).order_by(rounds.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(rounds.c.number < before)
    with store.database.read() as connection:
        rows = connection.execute(query).all()
    counts = _counts(store, job, [row.number for row in rows])
    return [
        RoundView(
            number=row.number,
            state=row.state,
            version=row.version,
            opened=row.opened,
            started=row.started,
            closed=row.closed,
            result=row.result,
            tasks=counts[row.number],
        )
        for row in rows
    ]


def metrics_of(store: Store, job: Job, after: int = -1) -> list[MetricView]:
    """Of the rounds after one."""
    of_job = metrics.c.job == job.id, metrics.c.round > after
    query = select(metrics).where(*of_job).order_by(metrics.c.round, metrics.c.name)
    with store.database.read() as connection:
        return [MetricView(round=row.round, name=row.name, value=row.value) for row in connection.execute(query)]


def traffic_of(store: Store, job: Job) -> list[TrafficView]:
    query = select(traffic).where(traffic.c.job == job.id).order_by(traffic.c.round, traffic.c.device)
    with store.database.read() as connection:
        return [
            TrafficView(round=row.round, device=row.device, up=row.up, down=row.down)
            for row in connection.execute(query)
        ]


def traffic_of_rounds(store: Store, job: Job) -> list[RoundTrafficView]:
    query = (
        select(traffic.c.round, func.sum(traffic.c.up).label("up"), func.sum(traffic.c.down).label("down"))
        .where(traffic.c.job == job.id)
        .group_by(traffic.c.round)
        .order_by(traffic.c.round)
    )
    with store.database.read() as connection:
        return [
            RoundTrafficView(round=row.round, up=int(row.up), down=int(row.down)) for row in connection.execute(query)
        ]


def refusals_of(store: Store, job: Job, limit: int) -> list[RefusalView]:
    query = select(refusals).where(refusals.c.job == job.id).order_by(refusals.c.id.desc()).limit(limit)
    with store.database.read() as connection:
        return [RefusalView.model_validate(dict(row)) for row in connection.execute(query).mappings()]


def audit_log(store: Store, limit: int) -> list[AuditView]:
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    with store.database.read() as connection:
        return [AuditView.model_validate(dict(row)) for row in connection.execute(query).mappings()]
