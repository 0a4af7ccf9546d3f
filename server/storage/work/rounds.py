"""Rounds as the database has them. All of these are steps of their caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, insert, or_, select, update

from server.jobs.job import Job
from server.storage.schema.rows import Round, RoundState
from server.storage.schema.tables import rounds, tasks

# --- looked up -------------------------------------------------------------------------------------------------------


def find(connection: Connection, job: str, number: int) -> Round:
    return Round(**connection.execute(select(rounds).where(*_is(job, number))).mappings().one())


def find_open(connection: Connection, job: str, number: int) -> Round | None:
    return _first(connection, select(rounds).where(*_is(job, number), rounds.c.state == "open"))


def lock(connection: Connection, job: str, number: int) -> Round:
    """Lock a round as it is until the transaction ends."""
    query = select(rounds).where(*_is(job, number)).with_for_update()
    return Round(**connection.execute(query).mappings().one())


def lock_open(connection: Connection, job: str, number: int) -> Round | None:
    """Lock a round if it is open, so that it stays open until the transaction ends."""
    query = select(rounds).where(*_is(job, number), rounds.c.state == "open")
    return _first(connection, query.with_for_update())


def newest(connection: Connection, job: str) -> Round | None:
    return _first(connection, select(rounds).where(rounds.c.job == job).order_by(rounds.c.number.desc()).limit(1))


def newest_joined(connection: Connection, job: str) -> Round | None:
    """Return the newest round that a device has a part in."""
    joined = select(func.max(tasks.c.round)).where(tasks.c.job == job).scalar_subquery()
    return _first(connection, select(rounds).where(rounds.c.job == job, rounds.c.number == joined))


def newest_first(connection: Connection, job: str, before: int | None, limit: int, after: int = -1) -> list[Round]:
    """Return up to `limit` rounds, the newest first, before one where it is given, and after another."""
    query = select(rounds).where(rounds.c.job == job).order_by(rounds.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(rounds.c.number < before)
    if after >= 0:
        query = query.where(rounds.c.number > after)
    return [Round(**row) for row in connection.execute(query).mappings()]


def last_done(connection: Connection, job: str, limit: int) -> list[float]:
    """Return when the newest rounds that moved the weights were closed, the newest first."""
    done = select(rounds.c.closed).where(rounds.c.job == job, rounds.c.state == "done")
    return list(connection.execute(done.order_by(rounds.c.number.desc()).limit(limit)).scalars())


def since(connection: Connection, job: str, number: int) -> dict[int, Round]:
    """Return the rounds of this number and later."""
    query = select(rounds).where(rounds.c.job == job, rounds.c.number >= number)
    return {row["number"]: Round(**row) for row in connection.execute(query).mappings()}


def count_by_state(connection: Connection) -> dict[str, int]:
    query = select(rounds.c.state, func.count()).group_by(rounds.c.state)
    return dict(connection.execute(query).all())


def _is(job: str, number: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return rounds.c.job == job, rounds.c.number == number


def _first(connection: Connection, query: Select[Any]) -> Round | None:
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else Round(**row)


# --- carried on ------------------------------------------------------------------------------------------------------


def add(connection: Connection, job: Job, number: int, now: float) -> None:
    """Add an open round, from the job's newest weights; its clock has not started."""
    connection.execute(
        insert(rounds).values(job=job.id, number=number, state="open", version=job.version, opened=now, iteration=0)
    )


def start_clock(connection: Connection, round_: Round, now: float, deadline: float) -> None:
    connection.execute(update(rounds).where(*_is(round_.job, round_.number)).values(started=now, deadline=deadline))


def settle(connection: Connection, round_: Round, *, in_time: bool) -> None:
    """Settle why a round takes no more reports; the first reason counts."""
    unsettled = *_is(round_.job, round_.number), rounds.c.iteration == round_.iteration, rounds.c.in_time.is_(None)
    connection.execute(update(rounds).where(*unsettled).values(in_time=in_time))


def claim(connection: Connection, round_: Round, owner: str, now: float, lease: float) -> Round | None:
    """Close an open one, or one whose lease is over: as it is then, with a fence that no other claim has."""
    claimed = (
        update(rounds)
        .where(
            *_is(round_.job, round_.number),
            rounds.c.iteration == round_.iteration,
            rounds.c.state.in_(("open", "closing")),
            or_(rounds.c.state == "open", rounds.c.lease <= now),
        )
        .values(state="closing", owner=owner, lease=lease, fence=rounds.c.fence + 1)
    )
    row = connection.execute(claimed.returning(*rounds.c)).mappings().one_or_none()
    return None if row is None else Round(**row)


def renew(connection: Connection, round_: Round, fence: int, lease: float) -> bool:
    """Renew a claim's lease; False if it no longer holds."""
    extended = update(rounds).where(*_is_claimed(round_, fence)).values(lease=lease)
    return bool(connection.execute(extended).rowcount)


def is_held(connection: Connection, round_: Round, fence: int) -> bool:
    """Tell whether the claim of this number still holds, and lock it until the transaction ends."""
    query = select(rounds.c.fence).where(*_is_claimed(round_, fence))
    return connection.scalar(query.with_for_update()) is not None


def _is_claimed(round_: Round, fence: int) -> tuple[ColumnElement[bool], ...]:
    return *_is(round_.job, round_.number), rounds.c.state == "closing", rounds.c.fence == fence


def next_iteration(connection: Connection, round_: Round, deadline: float) -> None:
    """Open for the reports of the iteration after this one."""
    connection.execute(
        update(rounds)
        .where(*_is(round_.job, round_.number))
        .values(state="open", owner=None, lease=None, iteration=round_.iteration + 1, deadline=deadline, in_time=None)
    )


def add_to_result(connection: Connection, round_: Round, known: Mapping[str, float]) -> None:
    """Add to the result of a round that is over."""
    if round_.result is not None:
        result = {**round_.result, **known}
        connection.execute(update(rounds).where(*_is(round_.job, round_.number)).values(result=result))


def close(connection: Connection, round_: Round, state: RoundState, result: Mapping[str, Any], now: float) -> None:
    connection.execute(
        update(rounds).where(*_is(round_.job, round_.number)).values(state=state, closed=now, result=result, owner=None)
    )
