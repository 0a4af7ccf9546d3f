"""What administrators see of devices: how they do, and who has which part of a round."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import and_, func, select

from edge_client.bundle.manifest import Manifest
from server.jobs.jobs import Job
from server.storage.store import Store
from server.storage.tables import devices, jobs, rounds, scalars, tasks, traffic

_AWAY_AFTER = 3.0
"""How many retry times a device may be silent; it waits at most about two."""
_AWAY_AT_LEAST = 60.0
"""Seconds; one that still works on a task that the round was closed without is silent too."""

DeviceState = Literal["training", "waiting", "away", "revoked"]
Totals = dict[str, tuple[int, int]]
"""Bytes up and down, for each device."""


class DeviceView(BaseModel):
    """A device, what it said of itself last, and what it does."""

    id: str
    name: str
    token: str
    created: float
    last_seen: float | None
    revoked: bool
    profile: dict[str, Any] | None
    state: DeviceState
    job: str | None
    """The name of the job whose task it has."""
    up: int
    down: int
    """Bytes of all that it sent and fetched."""


class UnitView(BaseModel):
    """What is assigned as a whole, and where in the model it is."""

    name: str
    segment: str


class PartView(BaseModel):
    """One client's part in a round."""

    task: str
    device: str
    name: str
    units: list[int]
    cut: int
    batch: int
    runtime: str
    state: str
    reason: str
    reported: bool
    """Whether its report of the round, or of the open iteration, has come."""


class AssignmentView(BaseModel):
    """Who has which units in a round."""

    round: int
    state: str
    iteration: int
    units: list[UnitView]
    parts: list[PartView]


def device_totals(store: Store) -> Totals:
    query = select(traffic.c.device, func.sum(traffic.c.up), func.sum(traffic.c.down)).group_by(traffic.c.device)
    with store.database.read() as connection:
        return {device: (int(up), int(down)) for device, up, down in connection.execute(query)}


def list_devices(store: Store, totals: Totals) -> list[DeviceView]:
    has_task = and_(tasks.c.device == devices.c.id, tasks.c.state == "open")
    columns = [column for column in devices.c if column.name != "hash"]
    query = (
        select(*columns, jobs.c.name.label("job"))
        .outerjoin_from(devices, tasks, has_task)
        .outerjoin(jobs, jobs.c.id == tasks.c.job)
        .order_by(devices.c.created, devices.c.id)
    )
    with store.database.read() as connection:
        rows = connection.execute(query).mappings().all()
    heard_since = store.now() - max(_AWAY_AFTER * store.settings.retry_seconds, _AWAY_AT_LEAST)
    return [_device(dict(row), totals.get(row["id"], (0, 0)), heard_since) for row in rows]


def _device(row: dict[str, Any], bytes_: tuple[int, int], heard_since: float) -> DeviceView:
    state: DeviceState = "waiting" if (row["last_seen"] or row["created"]) > heard_since else "away"
    if row["revoked"]:
        state = "revoked"
    elif row["job"] is not None:
        state = "training"
    return DeviceView(**row, state=state, up=bytes_[0], down=bytes_[1])


def assignment(store: Store, job: Job) -> AssignmentView | None:
    """Of the newest round that a device has joined; None before the first."""
    joined = select(func.max(tasks.c.round)).where(tasks.c.job == job.id).scalar_subquery()
    newest = select(rounds).where(rounds.c.job == job.id, rounds.c.number == joined)
    with store.database.read() as connection:
        round_ = connection.execute(newest).one_or_none()
        if round_ is None:
            return None
        given = (
            select(tasks, devices.c.name, scalars.c.task.label("sent"))
            .join(devices, devices.c.id == tasks.c.device)
            .outerjoin(scalars, and_(scalars.c.task == tasks.c.id, scalars.c.iteration == round_.iteration))
            .where(tasks.c.job == job.id, tasks.c.round == round_.number)
            .order_by(tasks.c.slot, tasks.c.created)
        )
        parts = [_part(row) for row in connection.execute(given)]
    units = _units(store.bundles.manifest(job.bundle))
    return AssignmentView(round=round_.number, state=round_.state, iteration=round_.iteration, units=units, parts=parts)


def _part(row: Any) -> PartView:
    return PartView(
        task=row.id,
        device=row.device,
        name=row.name,
        units=row.units,
        cut=row.cut,
        batch=row.batch,
        runtime=row.runtime,
        state=row.state,
        reason=row.reason,
        reported=row.state == "accepted" or row.sent is not None,
    )


def _units(manifest: Manifest) -> list[UnitView]:
    return [UnitView(name=unit.name, segment=unit.segments[0]) for unit in manifest.units]
