"""Show one device to people: its state, its history, and their note about it."""

from __future__ import annotations

from pydantic import BaseModel

from edge_client.bundle.manifest import Manifest
from server.control.devices import DeviceView, device_view, step_in_words
from server.control.outlook import waits
from server.errors import not_found
from server.rounds.selection.fleet import away_before
from server.storage import history as past
from server.storage.history import PastAssignment
from server.storage.identities import devices
from server.storage.store import Store
from server.storage.work import traffic


class PastAssignmentView(BaseModel):
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
    """The way in which it found its gradients, in words."""
    seconds: float | None
    peak_bytes: int | None
    examples: int | None
    loss: float | None
    """The loss of its report; none in mode iteration, and where there is no report."""


class PastRefusalView(BaseModel):
    """An update that was refused or a task that was given back, and why."""

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
    """True if it authenticates by a key of its own."""
    waits: list[str]
    """The reasons why it has nothing to do, where it is here and waits."""
    counts: dict[str, int]
    """The number of its parts by state."""
    parts: list[PastAssignmentView]
    refusals: list[PastRefusalView]


def history_of(store: Store, device: str, limit: int) -> DeviceHistory:
    """List what a device did last, and what became of that."""
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
    shown = device_view(found, job, moved, away_before(store))
    return DeviceHistory(
        **shown.model_dump(),
        token_label=label,
        signs=found.key is not None,
        waits=waits(store, found) if shown.state == "waiting" else [],
        counts=counts,
        parts=[_past_assignment(one, store.bundles.manifest(one.job.bundle)) for one in had],
        refusals=[
            PastRefusalView(time=one.time, job=name, round=one.round, code=one.code, detail=one.detail)
            for one, name in refused
        ],
    )


def _past_assignment(one: PastAssignment, manifest: Manifest) -> PastAssignmentView:
    assignment, report = one.assignment, one.assignment.sent and one.assignment.sent.report
    return PastAssignmentView(
        job=one.job.name,
        round=assignment.round,
        state=assignment.state,
        reason=assignment.reason,
        created=assignment.created,
        ended=assignment.ended,
        units=len(assignment.units),
        batch=assignment.batch,
        runtime=assignment.runtime,
        step=step_in_words(assignment.training(one.job.settings.training), assignment.units, manifest),
        seconds=report.seconds if report else None,
        peak_bytes=report.peak_bytes if report else None,
        examples=report.examples if report else None,
        loss=report.loss if report else None,
    )


def write_note(store: Store, device: str, note: str, by: str) -> None:
    """Keep a person's note on a device; an empty note is none."""
    with store.database.write() as connection:
        if not devices.set_note(connection, device, note):
            raise not_found("device", device, "GET /v1/devices")
        store.audit(connection, by, "device-note", device, note)
