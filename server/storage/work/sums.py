"""Keep sums of updates that devices add in secret. Every function is a step of its caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from edge_client.secagg.messages import Message, Stage
from server.storage.schema.rows import Assignment, Round
from server.storage.schema.tables import devices, summands, sums, tasks


@dataclass(frozen=True)
class SumStanding:
    """The progress of a sum."""

    stage: Stage
    until: float
    """The time at which it goes on without those who are late."""
    cap: int
    """Examples that count at most."""
    roster: tuple[int, ...]
    """Slots, as are the next two."""
    sharers: tuple[int, ...]
    survivors: tuple[int, ...]
    reason: str
    """The reason why it failed."""


@dataclass(frozen=True)
class Summand:
    """A device in a sum, and its messages."""

    task: str
    place: int
    key: str
    """The device's own public key."""
    declared: int | None
    is_open: bool
    """True if the device has not given up."""
    card: bytes
    shares: bytes | None
    update: str | None
    vow: bytes | None
    opening: bytes | None

    def said(self, message: Message | Stage) -> bytes | str | None:
        return getattr(self, message)


def find(connection: Connection, round_: Round) -> SumStanding | None:
    row = connection.execute(select(sums).where(*_of(sums, round_))).mappings().one_or_none()
    if row is None:
        return None
    places = {name: tuple(row[name]) for name in ("roster", "sharers", "survivors")}
    return SumStanding(row["stage"], row["until"], row["cap"], **places, reason=row["reason"])


def summands_of(connection: Connection, round_: Round) -> list[Summand]:
    """Return a round's summands in the order of their slots."""
    query = (
        select(summands, tasks.c.slot, tasks.c.state, tasks.c.declared, devices.c.key)
        .join(tasks, tasks.c.id == summands.c.task)
        .join(devices, devices.c.id == tasks.c.device)
        .where(*_of(summands, round_))
        .order_by(tasks.c.slot)
    )
    return [
        Summand(
            row["task"], row["slot"], row["key"] or "", row["declared"], row["state"] == "open", bytes(row["card"]),
            _bytes(row["shares"]), row["update"], _bytes(row["vow"]), _bytes(row["opening"]),
        )
        for row in connection.execute(query).mappings()
    ]  # fmt: skip


def find_said(connection: Connection, assignment: Assignment, message: Message) -> bytes | None:
    said = connection.scalar(select(summands.c[message]).where(summands.c.task == assignment.id))
    return _bytes(said)


def count(connection: Connection, round_: Round) -> int:
    """Count the devices at work that have sent the keys of the round: their update is ready."""
    query = select(func.count()).join(tasks, tasks.c.id == summands.c.task)
    return connection.scalar(query.where(*_of(summands, round_), tasks.c.state == "open")) or 0


def devices_of(connection: Connection, round_: Round, places: Sequence[int]) -> list[str]:
    """Look up the devices of these slots."""
    query = select(tasks.c.device).join(summands, summands.c.task == tasks.c.id)
    return list(connection.execute(query.where(*_of(summands, round_), tasks.c.slot.in_(places))).scalars())


# --- carried on ------------------------------------------------------------------------------------------------------


def begin(connection: Connection, round_: Round, roster: Sequence[int], cap: int, until: float) -> None:
    """Fix the roster of a sum; devices that were too late for it are free for others."""
    connection.execute(
        insert(sums).values(
            job=round_.job, round=round_.number, stage="shares", until=until, cap=cap, roster=list(roster),
            sharers=[], survivors=[], reason="",
        )
    )  # fmt: skip


def go_on(connection: Connection, round_: Round, stage: Stage, until: float, **places: Sequence[int]) -> None:
    values: dict[str, Any] = {name: list(known) for name, known in places.items()}
    connection.execute(update(sums).where(*_of(sums, round_)).values(stage=stage, until=until, **values))


def give_up(connection: Connection, round_: Round, reason: str, now: float) -> None:
    if find(connection, round_) is None:
        begin(connection, round_, (), 1, now)
    connection.execute(update(sums).where(*_of(sums, round_)).values(stage="over", reason=reason))


def leave_out(connection: Connection, round_: Round, inside: Collection[int], reason: str, now: float) -> None:
    """Assignments of other slots are nobody's any more."""
    others = tasks.c.job == round_.job, tasks.c.round == round_.number, tasks.c.slot.not_in(inside)
    state = round_.leaves(now)
    connection.execute(
        update(tasks).where(*others, tasks.c.state == "open").values(state=state, ended=now, reason=reason)
    )


def add(connection: Connection, assignment: Assignment, card: bytes) -> None:
    connection.execute(
        insert(summands).values(task=assignment.id, job=assignment.job, round=assignment.round, card=card)
    )


def say(connection: Connection, assignment: Assignment, message: Message | Stage, said: bytes | str) -> None:
    connection.execute(update(summands).where(summands.c.task == assignment.id).values({message: said}))


def accept(connection: Connection, parts: Sequence[str], norms: Mapping[str, float], now: float) -> None:
    """Their updates are in the sum; how far its mean goes stands with each of them."""
    if parts:
        values = {"state": "accepted", "ended": now, "norms": dict(norms), "reason": ""}
        connection.execute(update(tasks).where(tasks.c.id.in_(parts)).values(values))


def forget(connection: Connection, round_: Round) -> set[str]:
    """Forget the sum of a round that is over; give the masked updates that nothing names any more."""
    if connection.scalar(select(sums.c.job).where(*_of(sums, round_))) is None:
        return set()
    query = select(summands.c.update).where(*_of(summands, round_), summands.c.update.is_not(None))
    blobs = set(connection.execute(query).scalars())
    connection.execute(delete(summands).where(*_of(summands, round_)))
    connection.execute(delete(sums).where(*_of(sums, round_)))
    return blobs


def _of(table: Any, round_: Round) -> tuple[Any, ...]:
    return (and_(table.c.job == round_.job, table.c.round == round_.number),)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
