"""Devices' parts in rounds, as the database has them. All of these are steps of their caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, insert, or_, select, union_all, update

from edge_client.wire.protocol import Mode, Report
from server.storage.schema.rows import Assignment, AssignmentState, Reported, Round, Sent
from server.storage.schema.tables import devices, rounds, scalars, tasks

_MOST_NORMS = 300
"""The most norms that are read: their median says as much as that of all."""
_MOST_MISSED = 8
"""More in a row say nothing more."""
_TIME_IS_UP = func.coalesce(tasks.c.until, rounds.c.deadline)
"""The deadline of an assignment."""
_OTHERWISE = "units", "variant", "sent"
"""Fields that are no columns of the same name and type."""

# --- looked up -------------------------------------------------------------------------------------------------------


def find(connection: Connection, part: str) -> Assignment | None:
    row = connection.execute(select(tasks).where(tasks.c.id == part)).mappings().one_or_none()
    return None if row is None else assignment_in(row)


def find_open(connection: Connection, device: str) -> Assignment | None:
    """Find the assignment that a device is at work on."""
    query = select(tasks).where(tasks.c.device == device, tasks.c.state == "open")
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else assignment_in(row)


def devices_at_work(connection: Connection) -> set[str]:
    """Return the devices that have an open assignment."""
    return set(connection.execute(select(tasks.c.device).where(tasks.c.state == "open")).scalars())


def newest_round(connection: Connection, device: str, job: str, since: int) -> int | None:
    """Return the last round of a job, from one on, that a device had an assignment in."""
    query = select(func.max(tasks.c.round)).where(tasks.c.job == job, tasks.c.round >= since, tasks.c.device == device)
    return connection.scalar(query)


@dataclass(frozen=True)
class TakenSlot:
    """A slot of a round, and the device that has or had it."""

    device: str
    slot: int
    state: AssignmentState

    @property
    def is_live(self) -> bool:
        """True if nobody else can have it."""
        return self.state in ("open", "accepted")


class Missed(NamedTuple):
    """Assignments in a row of which nothing came before their round's time was up."""

    times: int
    last: float
    """The time at which the newest was given up."""


def taken_slots(connection: Connection, round_: Round) -> list[TakenSlot]:
    query = select(tasks.c.device, tasks.c.slot, tasks.c.state).where(*_of(round_))
    return [TakenSlot(*row) for row in connection.execute(query)]


def has_accepted(connection: Connection, round_: Round, device: str) -> bool:
    """Tell whether a device has done its part of a round."""
    query = select(tasks.c.id).where(*_of(round_), tasks.c.device == device, tasks.c.state == "accepted").limit(1)
    return connection.scalar(query) is not None


def open_seeds(connection: Connection, round_: Round) -> set[int]:
    """Return the seeds of the assignments that devices are at work on."""
    query = select(tasks.c.seed).where(*_of(round_), tasks.c.state == "open")
    return set(connection.execute(query).scalars())


def accepted(connection: Connection, round_: Round) -> list[Reported]:
    """Return the accepted assignments of a round, in the order of their slots."""
    query = select(tasks).where(*_of(round_), tasks.c.state == "accepted").order_by(tasks.c.slot, tasks.c.id)
    return [Reported(assignment_in(row)) for row in connection.execute(query).mappings()]


def accepted_devices(connection: Connection, round_: Round) -> list[str]:
    """List the devices whose updates a round takes."""
    query = select(tasks.c.device).where(*_of(round_), tasks.c.state == "accepted")
    return list(connection.execute(query.order_by(tasks.c.device)).scalars())


def accepted_norms(connection: Connection, job: str, *, since: int, until: int) -> list[tuple[int, dict[str, float]]]:
    """Return accepted norms with their rounds: from round `since` on, and up to `until`; the newest of many."""
    of_job = select(tasks.c.round, tasks.c.norms).where(tasks.c.job == job, tasks.c.state == "accepted")
    some = [
        of_job.where(which).order_by(tasks.c.ended.desc()).limit(_MOST_NORMS)
        for which in (tasks.c.round >= since, and_(tasks.c.round < since, tasks.c.round <= until))
    ]
    query = union_all(*(select(one.subquery()) for one in some))
    return [(number, norms) for number, norms in connection.execute(query) if norms]


def assignment_in(row: RowMapping) -> Assignment:
    """Build an assignment from a row of all columns of `tasks`, maybe with more."""
    own = {field.name: row[field.name] for field in fields(Assignment) if field.name not in _OTHERWISE}
    sent = None if row["update"] is None else Sent(row["update"], Report(**row["report"]), row["norms"])
    return Assignment(**own, units=tuple(row["units"]), variant=row["way"], sent=sent)


def _of(round_: Round) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return tasks.c.job == round_.job, tasks.c.round == round_.number


# --- named, and counted ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedAssignment:
    """An assignment, and the name of its device."""

    assignment: Assignment
    device: str
    has_scalars: bool
    """True if its report of the open iteration has arrived."""


def named(connection: Connection, round_: Round) -> list[NamedAssignment]:
    """Return a round's assignments in the order of their slots, and those of a slot as they were given out."""
    query = (
        select(tasks, devices.c.name, scalars.c.task.label("sent"))
        .join(devices, devices.c.id == tasks.c.device)
        .outerjoin(scalars, and_(scalars.c.task == tasks.c.id, scalars.c.iteration == round_.iteration))
        .where(*_of(round_))
        .order_by(tasks.c.slot, tasks.c.created)
    )
    rows = connection.execute(query).mappings()
    return [NamedAssignment(assignment_in(row), row["name"], row["sent"] is not None) for row in rows]


def count_accepted(connection: Connection, round_: Round) -> int:
    query = select(func.count()).where(*_of(round_), tasks.c.state == "accepted")
    return connection.scalar(query) or 0


def count_pending(connection: Connection, round_: Round, mode: Mode) -> int:
    """Open assignments whose report, in mode iteration that of the open iteration, has not come."""
    query = select(func.count()).where(*_of(round_), tasks.c.state == "open")
    if mode == "iteration":
        reported = select(scalars.c.task).where(
            scalars.c.job == round_.job, scalars.c.round == round_.number, scalars.c.iteration == round_.iteration
        )
        query = query.where(tasks.c.id.not_in(reported))
    return connection.scalar(query) or 0


def count_by_state(connection: Connection) -> dict[str, int]:
    query = select(tasks.c.state, func.count()).group_by(tasks.c.state)
    return dict(connection.execute(query).all())


def count_in(connection: Connection, job: str, numbers: Sequence[int]) -> dict[int, dict[str, int]]:
    """Count the assignments of each of these rounds, by state."""
    query = (
        select(tasks.c.round, tasks.c.state, func.count())
        .where(tasks.c.job == job, tasks.c.round.in_(numbers))
        .group_by(tasks.c.round, tasks.c.state)
    )
    counts: dict[int, dict[str, int]] = {number: {} for number in numbers}
    for number, state, total in connection.execute(query):
        counts[number][state] = total
    return counts


# --- given out, and ended --------------------------------------------------------------------------------------------


def add(connection: Connection, assignment: Assignment) -> None:
    """Add an open one; the database refuses another's slot, a second one of the round, and a second open one."""
    values = {name: value for name, value in vars(assignment).items() if name not in _OTHERWISE}
    connection.execute(
        insert(tasks).values(values | {"units": list(assignment.units), "way": assignment.variant, "sole": True})
    )


def last_trouble(connection: Connection, job: str, device: str, since: float) -> Assignment | None:
    """Return the newest assignment of this job that a device gave back, or was refused for, after a time."""
    query = (
        select(tasks)
        .where(
            tasks.c.job == job,
            tasks.c.device == device,
            tasks.c.ended > since,
            tasks.c.state.in_(("failed", "refused")),
        )
        .order_by(tasks.c.ended.desc())
        .limit(1)
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else assignment_in(row)


def missed(connection: Connection, device: str) -> Missed:
    """Return a device's newest assignments that ran out of their round's time one after the other."""
    query = (
        select(tasks.c.state, tasks.c.ended, _TIME_IS_UP)
        .join(rounds, and_(rounds.c.job == tasks.c.job, rounds.c.number == tasks.c.round))
        .where(tasks.c.device == device, tasks.c.state != "open")
        .order_by(tasks.c.created.desc())
        .limit(_MOST_MISSED)
    )
    ends: list[float] = []
    for state, ended, deadline in connection.execute(query):
        if state != "expired" or deadline is None or ended < deadline:  # a round that was complete without it
            break
        ends.append(ended)
    return Missed(len(ends), max(ends, default=0.0))


def last_timed(connection: Connection, job: str, device: str) -> Assignment | None:
    """Return a device's newest assignment of a job that shows how long one takes: it was accepted, or took too long."""
    too_long = and_(tasks.c.state == "expired", tasks.c.ended >= _TIME_IS_UP)
    query = (
        select(tasks)
        .join(rounds, and_(rounds.c.job == tasks.c.job, rounds.c.number == tasks.c.round))
        .where(tasks.c.job == job, tasks.c.device == device, or_(tasks.c.state == "accepted", too_long))
        .order_by(tasks.c.created.desc())
        .limit(1)
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else assignment_in(row)


def accept(connection: Connection, assignment: Assignment, sent: Sent, now: float) -> bool:
    """Accept an assignment's report if it is still open; return whether it was."""
    taken = (
        update(tasks)
        .where(tasks.c.id == assignment.id, tasks.c.state == "open")
        .values(ended=now, state="accepted", update=sent.sha256, report=asdict(sent.report), norms=sent.norms)
    )
    return bool(connection.execute(taken).rowcount)


def judge(connection: Connection, assignment: Assignment, told: Report) -> None:
    """Keep what a device measured in mode iteration, whose assignments have no other report."""
    connection.execute(update(tasks).where(tasks.c.id == assignment.id).values(report=asdict(told)))


def judged(connection: Connection, round_: Round) -> list[Report]:
    """Read what devices measured in a round of mode iteration."""
    query = select(tasks.c.report).where(*_of(round_), tasks.c.report.is_not(None), tasks.c.update.is_(None))
    told = connection.execute(query.order_by(tasks.c.slot, tasks.c.id)).scalars()
    return [Report(**report) for report in told if report is not None]


def end(connection: Connection, assignment: Assignment, state: AssignmentState, reason: str, now: float) -> bool:
    """End an assignment if it is still open; return whether it was."""
    ended = (
        update(tasks)
        .where(tasks.c.id == assignment.id, tasks.c.state == "open")
        .values(state=state, reason=reason, ended=now)
    )
    return bool(connection.execute(ended).rowcount)


def refuse_accepted(connection: Connection, part: str, reason: str) -> None:
    connection.execute(update(tasks).where(tasks.c.id == part).values(state="refused", reason=reason))


def accept_reporters(connection: Connection, round_: Round, now: float) -> None:
    """Accept the assignments of all who reported a step of the round."""
    reported = select(scalars.c.task).where(scalars.c.job == round_.job, scalars.c.round == round_.number)
    connection.execute(
        update(tasks)
        .where(*_of(round_), tasks.c.state == "open", tasks.c.id.in_(reported))
        .values(state="accepted", ended=now)
    )


def leave(connection: Connection, round_: Round, now: float) -> None:
    """End the assignments that are still open when their round ends."""
    state = round_.leaves(now)
    reason = "the round's time was up" if state == "expired" else "the round had enough updates"
    connection.execute(
        update(tasks).where(*_of(round_), tasks.c.state == "open").values(state=state, ended=now, reason=reason)
    )
