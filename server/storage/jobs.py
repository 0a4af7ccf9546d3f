"""Jobs as the database has them. To find and to list them is a transaction; all else is a step of its caller's."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping, Select, func, insert, or_, select, update

from edge_client.commands.options.retired import without_retired
from server.errors import not_found
from server.jobs.job import ENDED, RUNNING, SET_ASIDE, Job, JobState
from server.jobs.settings import JobSettings
from server.storage.schema.tables import bundles, jobs, rounds, tasks
from server.storage.store import Store

# --- in a transaction of their own -----------------------------------------------------------------------------------


def find_job(store: Store, job: str) -> Job:
    """Find a job by its id or name."""
    with store.database.read() as connection:
        row = connection.execute(_query().where(or_(jobs.c.id == job, jobs.c.name == job))).mappings().one_or_none()
    if row is None:
        raise not_found("job", job, "GET /v1/jobs")
    return job_in(row)


def list_jobs(store: Store, *states: JobState) -> list[Job]:
    """List all jobs in the order of their creation, or those in some states."""
    query = _query().where(jobs.c.state.in_(states)) if states else _query()
    with store.database.read() as connection:
        rows = connection.execute(query).mappings().all()
    return [job_in(row) for row in rows]


def _query() -> Select[Any]:
    return select(jobs).order_by(jobs.c.created, jobs.c.id)


def job_in(row: RowMapping) -> Job:
    """Build a job from a row of all columns of `jobs`."""
    values: dict[str, Any] = {**row, "settings": JobSettings.model_validate(without_retired(row["settings"]))}
    return Job(**values)


# --- made and steered ------------------------------------------------------------------------------------------------


def is_taken(connection: Connection, name: str) -> bool:
    """Tell whether a job has this name; ids are names too."""
    return connection.scalar(select(jobs.c.id).where(or_(jobs.c.name == name, jobs.c.id == name))) is not None


def add(connection: Connection, job: Job) -> None:
    """Add a job, and its bundle if it is the bundle's first."""
    if not connection.scalar(select(bundles.c.sha256).where(bundles.c.sha256 == job.bundle)):
        connection.execute(insert(bundles).values(sha256=job.bundle, created=job.created))
    connection.execute(insert(jobs).values(vars(job) | {"settings": job.settings.model_dump(mode="json")}))


def set_state(connection: Connection, job: str, state: JobState, reason: str) -> bool:
    """Unless it has ended."""
    moved = update(jobs).where(jobs.c.id == job, jobs.c.state != ENDED).values(state=state, reason=reason)
    return bool(connection.execute(moved).rowcount)


def go_on(connection: Connection, job: Job, settings: JobSettings) -> bool:
    """Take other settings for what is to come, unless the job has moved on meanwhile; one that has ended runs again."""
    state = RUNNING if job.state == ENDED else job.state
    moved = (
        update(jobs)
        .where(jobs.c.id == job.id, jobs.c.state == job.state)
        .values(settings=settings.model_dump(mode="json"), state=state, reason="", ended=None)
    )
    return bool(connection.execute(moved).rowcount)


def set_aside(connection: Connection, job: str, reason: str) -> bool:
    """Set a job aside; False if another worker did, or it has ended."""
    going = jobs.c.state.not_in((SET_ASIDE, ENDED))
    moved = update(jobs).where(jobs.c.id == job, going).values(state=SET_ASIDE, reason=reason)
    return bool(connection.execute(moved).rowcount)


def end(connection: Connection, job: str, reason: str, now: float) -> None:
    """End a job: its open rounds fail, and no more open."""
    connection.execute(update(jobs).where(jobs.c.id == job).values(state=ENDED, reason=reason, ended=now))
    connection.execute(
        update(rounds)
        .where(rounds.c.job == job, rounds.c.state.in_(("open", "closing")))
        .values(state="failed", closed=now, result={"reason": reason})
    )
    connection.execute(
        update(tasks)
        .where(tasks.c.job == job, tasks.c.state == "open")
        .values(state="spare", ended=now, reason=f"the job ended: {reason}")
    )


# --- carried on ------------------------------------------------------------------------------------------------------


def next_round(connection: Connection, job: Job) -> bool:
    """Count a round more, if the job is still in its state and no other worker has, nor published other weights."""
    as_read = jobs.c.round == job.round, jobs.c.state == job.state, jobs.c.version == job.version
    moved = update(jobs).where(jobs.c.id == job.id, *as_read).values(round=job.round + 1)
    return bool(connection.execute(moved).rowcount)


def set_version(connection: Connection, job: str, version: int) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job).values(version=version))


def set_done(connection: Connection, job: str, done: int) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job).values(done=done))


# --- counted ---------------------------------------------------------------------------------------------------------


def newest_versions(connection: Connection) -> list[tuple[str, int]]:
    """Return the newest version of each job that has not ended, and can go on."""
    query = select(jobs.c.id, jobs.c.version).where(jobs.c.state.not_in((SET_ASIDE, ENDED)))
    return [(job, version) for job, version in connection.execute(query)]


def count(connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(jobs)) or 0


def count_by_state(connection: Connection) -> dict[str, int]:
    query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
    return dict(connection.execute(query).all())
