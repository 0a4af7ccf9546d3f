"""Which versions' weights stand where mirrors show them. All of these are steps of their caller's transaction."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, and_, select, update

from server.jobs.job import RUNNING
from server.storage.schema.tables import jobs, versions


class WeightsOf(NamedTuple):
    """A version, and the sha256 of its weights."""

    job: str
    version: int
    sha256: str


def missing(connection: Connection) -> list[WeightsOf]:
    """List the weights that tasks start from now and that no mirror shows; in mode iteration devices need more."""
    newest = and_(versions.c.job == jobs.c.id, versions.c.version == jobs.c.version)
    query = (
        select(versions.c.job, versions.c.version, versions.c.weights, jobs.c.settings)
        .join(jobs, newest)
        .where(jobs.c.state == RUNNING, versions.c.weights.is_not(None), versions.c.mirrored.is_(None))
    )
    return [
        WeightsOf(job, version, weights)
        for job, version, weights, settings in connection.execute(query)
        if settings["training"]["mode"] == "epoch"
    ]


def spare(connection: Connection) -> list[WeightsOf]:
    """List what mirrors show of versions whose weights the server has dropped."""
    query = select(versions.c.job, versions.c.version, versions.c.mirrored)
    dropped = versions.c.mirrored.is_not(None), versions.c.weights.is_(None)
    return [WeightsOf(*row) for row in connection.execute(query.where(*dropped))]


def is_needed(connection: Connection, sha256: str) -> bool:
    """Tell whether a version that the server has not dropped has these weights too."""
    query = select(versions.c.job).where(versions.c.mirrored == sha256, versions.c.weights.is_not(None)).limit(1)
    return connection.scalar(query) is not None


def note(connection: Connection, job: str, version: int, sha256: str | None) -> None:
    """Note that mirrors show a version's weights; None: no longer."""
    of_version = versions.c.job == job, versions.c.version == version
    connection.execute(update(versions).where(*of_version).values(mirrored=sha256))


def weights_of(connection: Connection, job: str, version: int) -> str:
    """Return the sha256 of a version's weights where mirrors show them; empty where they do not."""
    query = select(versions.c.mirrored).where(versions.c.job == job, versions.c.version == version)
    return connection.scalar(query) or ""
