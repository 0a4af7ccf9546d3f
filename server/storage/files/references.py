"""Which files the database refers to, and which it does no more. All of these are steps of their caller's transaction.

A bundle goes by the sha256 of its manifest, a blob by that of its content; several rows may refer to the same one.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, or_, select

from server.storage.schema.rows import Round
from server.storage.schema.tables import bundles, jobs, rounds, summands, tasks, versions

_OF_ROUNDS = and_(rounds.c.job == tasks.c.job, rounds.c.number == tasks.c.round)


def bundle_names(connection: Connection) -> list[str]:
    return list(connection.execute(select(bundles.c.sha256).order_by(bundles.c.sha256)).scalars())


def needed_blobs(connection: Connection) -> set[str]:
    """Kept weights, held-out examples, and accepted updates of rounds that are not closed."""
    blobs: set[str | None] = set()
    for column in (versions.c.weights, versions.c.optimizer):
        blobs |= set(connection.execute(select(column)).scalars())
    blobs |= {settings.get("held_out") for settings in connection.execute(select(jobs.c.settings)).scalars()}
    updates = select(tasks.c.update).join(rounds, _OF_ROUNDS).where(tasks.c.state == "accepted")
    blobs |= set(connection.execute(updates.where(rounds.c.state.in_(("open", "closing")))).scalars())
    blobs |= set(connection.execute(select(summands.c.update)).scalars())
    return {sha for sha in blobs if sha}


def kept_updates(connection: Connection) -> set[str]:
    """Accepted updates of the jobs that keep them after their round."""
    settings = connection.execute(select(jobs.c.id, jobs.c.settings)).all()
    keeping = [job for job, values in settings if values.get("keep_updates")]
    updates = select(tasks.c.update).join(rounds, _OF_ROUNDS).where(tasks.c.state == "accepted")
    return {sha for sha in connection.execute(updates.where(tasks.c.job.in_(keeping))).scalars() if sha}


def spare_updates(connection: Connection, round_: Round) -> set[str]:
    """Updates of a round that is done which no other round waits for."""
    of_round = select(tasks.c.update).where(tasks.c.job == round_.job, tasks.c.round == round_.number)
    updates = set(connection.execute(of_round).scalars()) - {None}
    waiting = and_(_OF_ROUNDS, rounds.c.state != "done")
    needed = select(tasks.c.update).join(rounds, waiting).where(tasks.c.update.in_(updates))
    return updates - set(connection.execute(needed).scalars())


def is_kept(connection: Connection, sha256: str) -> bool:
    """Tell whether a version has its weights or its optimizer's state in this blob."""
    query = select(versions.c.job).where(or_(versions.c.weights == sha256, versions.c.optimizer == sha256)).limit(1)
    return connection.scalar(query) is not None
