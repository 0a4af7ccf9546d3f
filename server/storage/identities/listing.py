"""Devices as a page lists them: searched, filtered and sorted by the database, some at a time.

All of these are steps of their caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, or_, select

from server.storage.schema.rows import Device, Refused
from server.storage.schema.tables import devices, jobs, refusals, tasks, tokens

DeviceState = Literal["training", "waiting", "away", "revoked"]
DeviceOrder = Literal["state", "name", "last_seen", "created", "group", "version", "failed"]
STATES: tuple[DeviceState, ...] = ("training", "waiting", "away", "revoked")
_GROUPS = 200
"""The most groups that are listed, the largest first."""
_DIGITS = "0123456789"


@dataclass(frozen=True)
class DeviceQuery:
    """Which devices are wanted."""

    heard_since: float
    """The moment before which a device that was last seen counts as away."""
    search: str = ""
    """A part of the id, the name, the note, the version or the group's label."""
    state: DeviceState | None = None
    group: str | None = None
    """The id of the token that they enrolled with."""
    failed_since: float | None = None
    """Keeps only devices of which something was refused or given back since this time."""


class Listed(NamedTuple):
    """A device in a list."""

    device: Device
    state: DeviceState
    job: str | None
    """The name of the job that it works on."""
    group: str
    """The label of its token."""
    failed: Refused | None
    """The device's last refusal or failure."""


@dataclass(frozen=True)
class Group:
    """Devices that enrolled with the same token."""

    token: str
    label: str
    count: int


def page(
    connection: Connection,
    wanted: DeviceQuery,
    order: DeviceOrder,
    offset: int,
    limit: int,
    *,
    descending: bool = False,
) -> list[Listed]:
    """List some of the devices that fit, in an order that has no ties."""
    state, last = _state(wanted.heard_since), _newest_failure()
    columns = (
        *devices.c,
        state.label("state"),
        jobs.c.name.label("job"),
        tokens.c.label.label("label"),
        last.label("last"),
    )
    by: dict[DeviceOrder, list[ColumnElement[Any]]] = {
        "state": [case({name: place for place, name in enumerate(STATES)}, value=state)],
        "last_seen": [func.coalesce(devices.c.last_seen, 0.0)],
        "created": [devices.c.created],
        "group": [tokens.c.label, devices.c.token],
        "version": [func.coalesce(devices.c.version, "")],
        "failed": [func.coalesce(last, 0)],
        "name": _by_name(),
    }
    chosen = [column.desc() if descending else column for column in by[order]]
    query = _wanted(select(*columns), wanted, state).order_by(*chosen, *_by_name(), devices.c.id)
    found = connection.execute(query.offset(offset).limit(limit)).mappings().all()
    failed = _refusals(connection, [row["last"] for row in found if row["last"]])
    own = [field.name for field in fields(Device)]
    return [
        Listed(
            Device(**{name: row[name] for name in own}), row["state"], row["job"], row["label"], failed.get(row["last"])
        )
        for row in found
    ]


def count_states(connection: Connection, wanted: DeviceQuery) -> dict[str, int]:
    """Count the devices that fit, by state; those of other states too."""
    state = _state(wanted.heard_since)
    counted: Any = select(state.label("state"), func.count().label("many"))
    rows = connection.execute(_wanted(counted, wanted, None).group_by(state)).mappings()
    return {row["state"]: row["many"] for row in rows}


def groups(connection: Connection) -> list[Group]:
    """List the tokens that devices enrolled with, the one of most devices first."""
    query = (
        select(tokens.c.id, tokens.c.label, func.count())
        .join(devices, devices.c.token == tokens.c.id)
        .group_by(tokens.c.id, tokens.c.label)
        .order_by(func.count().desc(), tokens.c.id)
        .limit(_GROUPS)
    )
    return [Group(*row) for row in connection.execute(query)]


def _wanted(query: Select[Any], wanted: DeviceQuery, state: ColumnElement[str] | None) -> Select[Any]:
    """Select these columns of the devices that match; of all states where none is given."""
    at_work = and_(tasks.c.device == devices.c.id, tasks.c.state == "open")
    query = (
        query.select_from(devices)
        .join(tokens, tokens.c.id == devices.c.token)
        .outerjoin(tasks, at_work)
        .outerjoin(jobs, jobs.c.id == tasks.c.job)
    )
    if wanted.search:
        searched = devices.c.id, devices.c.name, devices.c.note, devices.c.version, tokens.c.label
        query = query.where(or_(*(column.icontains(wanted.search, autoescape=True) for column in searched)))
    if wanted.state is not None and state is not None:
        query = query.where(state == wanted.state)
    if wanted.group is not None:
        query = query.where(devices.c.token == wanted.group)
    if wanted.failed_since is not None:
        since = select(refusals.c.id).where(refusals.c.device == devices.c.id, refusals.c.time > wanted.failed_since)
        query = query.where(since.exists())
    return query


def _state(heard_since: float) -> ColumnElement[str]:
    heard = func.coalesce(devices.c.last_seen, devices.c.created) > heard_since
    return case((devices.c.revoked, "revoked"), (tasks.c.id.is_not(None), "training"), (heard, "waiting"), else_="away")


def _by_name() -> list[ColumnElement[Any]]:
    """Sort names as people count: `board-9` stands before `board-10`."""
    return [func.rtrim(devices.c.name, _DIGITS), func.length(devices.c.name), devices.c.name]


def _newest_failure() -> ColumnElement[int | None]:
    """Return the id of a device's newest refusal or failure."""
    of_device = select(refusals.c.id).where(refusals.c.device == devices.c.id)
    return of_device.order_by(refusals.c.id.desc()).limit(1).scalar_subquery()


def _refusals(connection: Connection, among: list[int]) -> Mapping[int, Refused]:
    query = select(refusals).where(refusals.c.id.in_(among))
    return {row["id"]: Refused(**row) for row in connection.execute(query).mappings()}
