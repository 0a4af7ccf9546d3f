"""What administrators see of devices: how they do, and who has which part of a round."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import Training
from server.control.outlook import waits
from server.errors import not_found
from server.jobs.job import Job
from server.rounds.fleet import away_before
from server.storage import devices, parts, rounds, traffic
from server.storage import history as past
from server.storage.history import PastPart
from server.storage.parts import NamedPart
from server.storage.rows import Device, Volume
from server.storage.store import Store

DeviceState = Literal["training", "waiting", "away", "revoked"]
Totals = dict[str, Volume]
"""Of each device."""


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
    note: str
    """What people wrote about it."""


class PastPartView(BaseModel):
    """A device's part in a round, and what became of it."""

    job: str
    """The job's name."""
    round: int
    state: str
    reason: str
    created: float
    ended: float | None
    units: int
    batch: int
    runtime: str
    step: str
    """How it found its gradients, in words."""
    seconds: float | None
    peak_bytes: int | None
    examples: int | None
    loss: float | None
    """As its report says; none in mode iteration, and where there is no report."""


class PastRefusalView(BaseModel):
    """What was not taken from a device, or what it gave back, and why."""

    time: float
    job: str
    """The job's name."""
    round: int | None
    code: str
    detail: str


class DeviceHistory(DeviceView):
    """A device and what it did, the newest first; parts of old rounds are forgotten after a while."""

    token_label: str
    signs: bool
    """Whether it proves itself by a key of its own."""
    waits: list[str]
    """Why it has nothing to do, where it is here and waits."""
    counts: dict[str, int]
    """Its parts by state."""
    parts: list[PastPartView]
    refusals: list[PastRefusalView]


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
    step: str
    """How it finds its gradients, in words."""
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
    with store.database.read() as connection:
        return traffic.by_device(connection)


def list_devices(store: Store, totals: Totals) -> list[DeviceView]:
    with store.database.read() as connection:
        known = devices.with_jobs(connection)
    heard_since = away_before(store)
    return [_device(device, job, totals.get(device.id, Volume(0, 0)), heard_since) for device, job in known]


def _device(device: Device, job: str | None, moved: Volume, heard_since: float) -> DeviceView:
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


def history(store: Store, device: str, limit: int) -> DeviceHistory:
    """Of a device: what it did last, and what became of that."""
    with store.database.read() as connection:
        known = devices.with_jobs(connection, device)
        if not known:
            raise not_found("device", device, "GET /v1/devices")
        label = devices.label_of(connection, known[0][0].token)
        moved = traffic.of_device(connection, device)
        counts = past.count_parts(connection, device)
        had = past.parts_of(connection, device, limit)
        refused = past.refusals_of(connection, device, limit)
    found, job = known[0]
    shown = _device(found, job, moved, away_before(store))
    return DeviceHistory(
        **shown.model_dump(),
        token_label=label,
        signs=found.key is not None,
        waits=waits(store, found) if shown.state == "waiting" else [],
        counts=counts,
        parts=[_past_part(one) for one in had],
        refusals=[
            PastRefusalView(time=one.time, job=name, round=one.round, code=one.code, detail=one.detail)
            for one, name in refused
        ],
    )


def _past_part(one: PastPart) -> PastPartView:
    part, report = one.part, one.part.sent and one.part.sent.report
    return PastPartView(
        job=one.job.name,
        round=part.round,
        state=part.state,
        reason=part.reason,
        created=part.created,
        ended=part.ended,
        units=len(part.units),
        batch=part.batch,
        runtime=part.runtime,
        step=_step(part.training(one.job.settings.training)),
        seconds=report.seconds if report else None,
        peak_bytes=report.peak_bytes if report else None,
        examples=report.examples if report else None,
        loss=report.loss if report else None,
    )


def write_note(store: Store, device: str, note: str, by: str) -> None:
    """What people want to remember of a device; an empty note is none."""
    with store.database.write() as connection:
        if not devices.set_note(connection, device, note):
            raise not_found("device", device, "GET /v1/devices")
        store.audit(connection, by, "device-note", device, note)


def assignment(store: Store, job: Job) -> AssignmentView | None:
    """Of the newest round that a device has joined; None before the first."""
    with store.database.read() as connection:
        round_ = rounds.newest_joined(connection, job.id)
        if round_ is None:
            return None
        given = [_part(named, job.settings.training) for named in parts.named(connection, round_)]
    units = _units(store.bundles.manifest(job.bundle))
    return AssignmentView(round=round_.number, state=round_.state, iteration=round_.iteration, units=units, parts=given)


def _step(training: Training) -> str:
    """How a client finds its gradients, in words."""
    if training.estimator != "mixed":
        return training.estimator
    blocks = training.exact_blocks
    return f"exact through {blocks} block{'' if blocks == 1 else 's'}, forward before"


def _part(named: NamedPart, of_job: Training) -> PartView:
    part = named.part
    return PartView(
        task=part.id,
        device=part.device,
        name=named.device,
        units=list(part.units),
        cut=part.cut,
        batch=part.batch,
        runtime=part.runtime,
        step=_step(part.training(of_job)),
        state=part.state,
        reason=part.reason,
        reported=part.state == "accepted" or named.has_scalars,
    )


def _units(manifest: Manifest) -> list[UnitView]:
    return [UnitView(name=unit.name, segment=unit.segments[0]) for unit in manifest.units]
