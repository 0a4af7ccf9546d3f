"""Read one device's history, the newest first. Every function is a step of its caller's transaction."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from server.jobs.job import Job
from server.storage.jobs import job_in
from server.storage.schema.rows import Assignment, Refused
from server.storage.schema.tables import jobs, refusals, tasks
from server.storage.work.assignments import assignment_in


class PastAssignment(NamedTuple):
    """A part that a device has or had, and of which job."""

    assignment: Assignment
    job: Job


def parts_of(connection: Connection, device: str, limit: int) -> list[PastAssignment]:
    query = select(tasks).where(tasks.c.device == device).order_by(tasks.c.created.desc()).limit(limit)
    known = [assignment_in(row) for row in connection.execute(query).mappings()]
    wanted = select(jobs).where(jobs.c.id.in_({assignment.job for assignment in known}))
    of = {row["id"]: job_in(row) for row in connection.execute(wanted).mappings()}
    return [PastAssignment(assignment, of[assignment.job]) for assignment in known]


def count_parts(connection: Connection, device: str) -> dict[str, int]:
    """Count the parts that a device has had, by state."""
    query = select(tasks.c.state, func.count()).where(tasks.c.device == device).group_by(tasks.c.state)
    return dict(connection.execute(query).all())


def refusals_of(connection: Connection, device: str, limit: int) -> list[tuple[Refused, str]]:
    """Return a device's newest refusals, with the names of their jobs."""
    query = (
        select(refusals, func.coalesce(jobs.c.name, "").label("name"))
        .outerjoin(jobs, jobs.c.id == refusals.c.job)
        .where(refusals.c.device == device)
        .order_by(refusals.c.id.desc())
        .limit(limit)
    )
    rows = connection.execute(query).mappings()
    return [(Refused(**{field.name: row[field.name] for field in fields(Refused)}), row["name"]) for row in rows]
