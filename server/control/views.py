"""Show jobs, rounds and refusals to administrators."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection

from server.control.adapters import formats_of
from server.control.outlook import ends_about
from server.jobs.job import ENDED, RUNNING, Job
from server.jobs.settings import JobSettings
from server.privacy.accountant import epsilon_of
from server.rounds.outcome import late
from server.rounds.outcome.evaluation import task_of
from server.rounds.rounds import wanted
from server.rounds.secrecy.privacy import spent
from server.rounds.selection import fleet
from server.storage.identities import audit, devices, refusals
from server.storage.schema.rows import Round
from server.storage.store import Store
from server.storage.work import assignments, metrics, rounds, scalars, sums, traffic


class NewestRoundView(BaseModel):
    """The newest round."""

    number: int
    state: str
    iteration: int
    wanted: int
    """Reports that complete it; in later iterations, of all who reported in the one before and are still here."""
    training: int
    """Devices with an open task."""
    reported: int
    """Devices whose report has come; in mode iteration, that of the open iteration."""
    deadline: float | None
    lacks: str | None = None
    """The lack that it waits for beside its devices' reports, and what to do about it."""


class PrivacyView(BaseModel):
    """The privacy budget of a job: what it has cost its devices, and what it may."""

    epsilon: float
    """The epsilon of the device that took part most often."""
    planned: float
    """The epsilon of a device that takes part as often as it may."""
    delta: float
    noise: float
    """The noise of a round's sum, in clips."""
    times: int
    """Rounds that a device takes part in at most."""


class JobView(BaseModel):
    """A job as it stands."""

    id: str
    name: str
    bundle: str
    state: str
    reason: str
    version: int
    done: int
    """Rounds that moved the weights."""
    created: float
    ended: float | None
    settings: JobSettings
    progress: NewestRoundView | None
    metrics: dict[str, float]
    """The metrics of the newest round that has them."""
    score: str
    """The metric of the model's quality, with `_global` where devices measured it."""
    refused: dict[str, int]
    """Updates not taken, and tasks given back ("failed"), by code."""
    up: int
    down: int
    """Bytes that devices sent and fetched, as of some seconds ago."""
    devices: int
    """The number of devices that have sent something for it, as of some seconds ago."""
    privacy: PrivacyView | None
    """The privacy of a private job."""
    sees: str
    """The part of devices' work that the server can see."""
    ends_about: float | None
    """The estimated time at which its last round is done, if rounds go on as the newest did."""
    model: str
    """The model that its bundle was made of: a name on the hub, `package:…`, or the name of a folder or file."""
    formats: list[str]
    """The formats in which this server publishes the adapter."""


class RoundView(BaseModel):
    """A round, and what became of the devices in it."""

    number: int
    state: str
    version: int
    opened: float
    started: float | None
    closed: float | None
    result: dict[str, Any] | None
    tasks: dict[str, int]
    began: str
    """The versions that updates began with, in words, where rounds take late updates."""


class MetricView(BaseModel):
    """One number about one round."""

    round: int
    name: str
    value: float


class TrafficView(BaseModel):
    """The bytes that a device sent and fetched in a round; round 0 is the bundle."""

    round: int
    device: str
    up: int
    down: int


class RoundTrafficView(BaseModel):
    """The bytes that all devices sent and fetched in a round."""

    round: int
    up: int
    down: int


class RefusalView(BaseModel):
    """An update that was not taken, or a task that a device gave back."""

    id: int
    time: float
    round: int | None
    device: str
    task: str | None
    code: str
    detail: str
    name: str
    """The device's."""


class AuditView(BaseModel):
    """An act of a person: who did what, and when."""

    time: float
    actor: str
    action: str
    subject: str
    detail: str


def job(store: Store, job: Job) -> JobView:
    with store.database.read() as connection:
        values = metrics.newest(connection, job.id)
        if job.state == ENDED and (number := store.models.round_of(connection, job.id, job.version)) is not None:
            values |= metrics.of_round(connection, job.id, number)  # the best one's, where it ended with its weights
        moved = traffic.total(connection, job.id)
        refused = refusals.count_by_code(connection, job.id)
        senders = traffic.count_senders(connection, job.id)
        ends = ends_about(connection, job, store.now())
        cost = _privacy(connection, job)
    manifest = store.bundles.manifest(job.bundle)
    return JobView(
        id=job.id,
        name=job.name,
        bundle=job.bundle,
        state=job.state,
        reason=job.reason,
        version=job.version,
        done=job.done,
        created=job.created,
        ended=job.ended,
        settings=job.settings,
        progress=_newest_round(store, job),
        metrics=values,
        score=task_of(store, job).main_score,
        refused=refused,
        up=moved.up,
        down=moved.down,
        devices=senders,
        privacy=cost,
        sees=job.settings.sees,
        ends_about=ends,
        model=manifest.model.name,
        formats=formats_of(store, job),
    )


def _privacy(connection: Connection, job: Job) -> PrivacyView | None:
    noise, times, delta = job.settings.privacy_noise, job.settings.privacy_times, job.settings.privacy_delta
    if noise is None or times is None:
        return None
    planned = epsilon_of(noise, delta, times)
    return PrivacyView(epsilon=spent(connection, job), planned=planned, delta=delta, noise=noise, times=times)


def _newest_round(store: Store, job: Job) -> NewestRoundView | None:
    with store.database.read() as connection:
        round_ = rounds.newest(connection, job.id)
        if round_ is None:
            return None
        reported = scalars.count(connection, round_)
        ready = sums.count(connection, round_)
    counts = _counts(store, job, [round_.number])[round_.number]
    over = round_.state in ("done", "failed")
    if job.settings.training.mode == "epoch" or over:
        reported = counts.get("accepted", 0) + ready
    return NewestRoundView(
        number=round_.number,
        state=round_.state,
        iteration=round_.iteration,
        wanted=job.settings.complete if over else wanted(store, job, round_),
        training=counts.get("open", 0) - ready,
        reported=reported,
        deadline=round_.deadline,
        lacks=_lacks(store, job, round_),
    )


def _lacks(store: Store, job: Job, round_: Round) -> str | None:
    """Say what an open round lacks, at its start: later iterations wait for reporters of the one before alone."""
    if job.state != RUNNING or round_.state != "open" or round_.iteration:
        return None
    return fleet.wants(store, job, round_)


def _counts(store: Store, job: Job, numbers: list[int]) -> dict[int, dict[str, int]]:
    with store.database.read() as connection:
        return assignments.count_in(connection, job.id, numbers)


def rounds_of(store: Store, job: Job, before: int | None, limit: int, after: int = -1) -> list[RoundView]:
    with store.database.read() as connection:
        known = rounds.newest_first(connection, job.id, before, limit, after)
    counts = _counts(store, job, [round_.number for round_ in known])
    return [
        RoundView(
            number=round_.number,
            state=round_.state,
            version=round_.version,
            opened=round_.opened,
            started=round_.started,
            closed=round_.closed,
            result=round_.result,
            tasks=counts[round_.number],
            began=late.in_words((round_.result or {}).get("stale", {})),
        )
        for round_ in known
    ]


def metrics_of(store: Store, job: Job, after: int = -1) -> list[MetricView]:
    """Return the metrics of the rounds after one."""
    with store.database.read() as connection:
        known = metrics.after(connection, job.id, after)
    return [MetricView.model_validate(metric, from_attributes=True) for metric in known]


def traffic_of(store: Store, job: Job) -> list[TrafficView]:
    with store.database.read() as connection:
        moved = traffic.by_round_and_device(connection, job.id)
    return [
        TrafficView(round=round_, device=device, up=volume.up, down=volume.down)
        for (round_, device), volume in moved.items()
    ]


def traffic_of_rounds(store: Store, job: Job) -> list[RoundTrafficView]:
    with store.database.read() as connection:
        moved = traffic.by_round(connection, job.id)
    return [RoundTrafficView(round=round_, up=volume.up, down=volume.down) for round_, volume in moved.items()]


def refusals_of(store: Store, job: Job, limit: int) -> list[RefusalView]:
    with store.database.read() as connection:
        known = refusals.newest_first(connection, job.id, limit)
        names = devices.names(connection, {one.device for one in known})
    return [RefusalView(**asdict(one), name=names.get(one.device, one.device)) for one in known]


def audit_log(store: Store, limit: int) -> list[AuditView]:
    with store.database.read() as connection:
        known = audit.newest_first(connection, limit)
    return [AuditView.model_validate(deed, from_attributes=True) for deed in known]
