"""Show devices to administrators: their state, and who has which part of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from edge_client.wire.protocol import Training
from server.jobs.job import Job
from server.rounds.selection.fleet import away_before
from server.storage.identities import devices, listing
from server.storage.identities.listing import DeviceOrder, DeviceQuery, DeviceState, Listed
from server.storage.schema.rows import Device, Volume
from server.storage.store import Store
from server.storage.work import assignments, rounds, traffic
from server.storage.work.assignments import NamedAssignment

FAILED_SECONDS = 86_400.0
"""Within so many, what was refused of a device or given back makes it one that failed."""
Totals = dict[str, Volume]
"""The totals of each device, by its id."""


class DeviceView(BaseModel):
    """A device, its last check-in, and its work."""

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
    note: str
    """The note that people wrote about it."""


class FailureView(BaseModel):
    """The last refusal or failure of a device."""

    time: float
    code: str
    detail: str


class ListedDevice(DeviceView):
    """A device in a list."""

    group: str
    """The label of its token."""
    version: str
    """The version of the device's client; empty until it has reported it."""
    failed: FailureView | None
    """The last thing that went wrong, whenever that was."""


class GroupView(BaseModel):
    """Devices that enrolled with the same token."""

    token: str
    label: str
    count: int


class DeviceList(BaseModel):
    """A part of the devices that match a search."""

    total: int
    """The number that match."""
    states: dict[str, int]
    """The number of matching devices in each state, whichever state is asked for."""
    groups: list[GroupView]
    """All groups to choose from; of many the largest."""
    devices: list[ListedDevice]


class FleetView(BaseModel):
    """The number of devices, and the first of them."""

    states: dict[str, int]
    """The number of devices in each state."""
    first: list[str]
    """The ids of those that a job's page shows: the ones at work, then those that wait, by their names."""


class UnitView(BaseModel):
    """A unit, and the segment of the model that it is in."""

    name: str
    segment: str


class AssignmentView(BaseModel):
    """The task of one client in a round."""

    task: str
    device: str
    name: str
    units: list[int]
    cut: int
    batch: int
    runtime: str
    step: str
    """The way of finding gradients, in words."""
    state: str
    reason: str
    reported: bool
    """True if its report of the round, or of the open iteration, has arrived."""


class AssignmentsView(BaseModel):
    """The units of each device in a round."""

    round: int
    state: str
    iteration: int
    units: list[UnitView]
    parts: list[AssignmentView]


def device_totals(store: Store) -> Totals:
    with store.database.read() as connection:
        return traffic.by_device(connection)


def list_devices(store: Store, totals: Totals) -> list[DeviceView]:
    with store.database.read() as connection:
        known = devices.with_jobs(connection)
    heard_since = away_before(store)
    return [device_view(device, job, totals.get(device.id, Volume(0, 0)), heard_since) for device, job in known]


def first_devices(store: Store, limit: int) -> tuple[FleetView, list[DeviceView]]:
    """Count all devices, and list the first of them."""
    every = DeviceQuery(away_before(store))
    with store.database.read() as connection:
        found = listing.page(connection, every, "state", 0, limit)
        moved = traffic.by_device(connection, [one.device.id for one in found])
        states = listing.count_states(connection, every)
    rows = [
        device_view(one.device, one.job, moved.get(one.device.id, Volume(0, 0)), every.heard_since) for one in found
    ]
    return FleetView(states=states, first=[row.id for row in rows]), rows


def device_list(
    store: Store, wanted: DeviceQuery, order: DeviceOrder, offset: int, limit: int, *, descending: bool = False
) -> DeviceList:
    """List the devices that fit, from one of them on."""
    with store.database.read() as connection:
        found = listing.page(connection, wanted, order, offset, limit, descending=descending)
        moved = traffic.by_device(connection, [one.device.id for one in found])
        states = listing.count_states(connection, wanted)
        groups = [GroupView(**asdict(group)) for group in listing.groups(connection)]
    rows = [_listed(one, moved.get(one.device.id, Volume(0, 0)), wanted.heard_since) for one in found]
    total = sum(states.values()) if wanted.state is None else states.get(wanted.state, 0)
    return DeviceList(total=total, states=states, groups=groups, devices=rows)


def _listed(one: Listed, moved: Volume, heard_since: float) -> ListedDevice:
    failed = one.failed and FailureView(time=one.failed.time, code=one.failed.code, detail=one.failed.detail)
    known = device_view(one.device, one.job, moved, heard_since)
    return ListedDevice(**known.model_dump(), group=one.group, version=one.device.version or "", failed=failed)


def device_view(device: Device, job: str | None, moved: Volume, heard_since: float) -> DeviceView:
    state: DeviceState = "waiting" if (device.last_seen or device.created) > heard_since else "away"
    if device.revoked:
        state = "revoked"
    elif job is not None:
        state = "training"
    return DeviceView(
        id=device.id,
        name=device.name,
        token=device.token,
        created=device.created,
        last_seen=device.last_seen,
        revoked=device.revoked,
        profile=device.profile,
        state=state,
        job=job,
        up=moved.up,
        down=moved.down,
        note=device.note or "",
    )


def assignment(store: Store, job: Job) -> AssignmentsView | None:
    """Show who has which part of the newest round that a device has joined; None before the first."""
    with store.database.read() as connection:
        round_ = rounds.newest_joined(connection, job.id)
        if round_ is None:
            return None
        named = assignments.named(connection, round_)
    manifest = store.bundles.manifest(job.bundle)
    given, units = [_assignment(one, job.settings.training, manifest) for one in named], _units(manifest)
    return AssignmentsView(
        round=round_.number, state=round_.state, iteration=round_.iteration, units=units, parts=given
    )


def step_in_words(training: Training, units: Sequence[int], manifest: Manifest) -> str:
    """Describe a client's way of finding the gradients of some units."""
    if training.estimator != "mixed":
        return training.estimator
    blocks = training.exact_blocks
    before = ", forward before" if kind_of(training).directed(manifest, training, units) else ""
    return f"exact through {blocks} block{'' if blocks == 1 else 's'}{before}"


def _assignment(named: NamedAssignment, of_job: Training, manifest: Manifest) -> AssignmentView:
    assignment = named.assignment
    return AssignmentView(
        task=assignment.id,
        device=assignment.device,
        name=named.device,
        units=list(assignment.units),
        cut=assignment.cut,
        batch=assignment.batch,
        runtime=assignment.runtime,
        step=step_in_words(assignment.training(of_job), assignment.units, manifest),
        state=assignment.state,
        reason=assignment.reason,
        reported=assignment.state == "accepted" or named.has_scalars,
    )


def _units(manifest: Manifest) -> list[UnitView]:
    return [UnitView(name=unit.name, segment=unit.segments[0]) for unit in manifest.units]
