"""Aggregate: what a round, or an iteration of it, makes of the reports that were accepted.

The arithmetic takes plain values, so that a simulated fleet goes through the same lines; `aggregate` finds them in the
database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.wire.scalars import Participant, ScalarReport, StepRecord, as_published, decode_report
from server.jobs.jobs import Job, JobSettings
from server.rounds.aggregation import Mean
from server.rounds.outliers import Norms, beyond, usual_in
from server.storage.models import Model, moved, repeated
from server.storage.store import Store


@dataclass(frozen=True)
class Update:
    """One client's weights after its part of a round."""

    task: str
    norms: Norms
    report: dict[str, Any]
    tensors: Callable[[], Mapping[str, Any]]
    """Read when it is this update's turn."""


@dataclass(frozen=True)
class Step:
    """One client's numbers of an iteration."""

    seed: int
    units: tuple[int, ...]
    report: ScalarReport


@dataclass(frozen=True)
class Outcome:
    """The next weights, and what is known of how they came about."""

    model: Model
    change: Weights
    reports: list[dict[str, Any]]
    record: StepRecord | None = None
    refused: tuple[tuple[str, str], ...] = ()
    """Tasks whose updates turned out to be outliers, and why."""


def aggregate(store: Store, job: Job, round_: Row[Any], reported: Sequence[Row[Any]]) -> Outcome:
    """`reported` are tasks with their updates, or with the scalars of the open iteration."""
    manifest, settings = store.bundles.manifest(job.bundle), job.settings
    if settings.training.mode == "epoch":
        start = store.models.load(job, round_.version)
        updates = [Update(row.id, row.norms, row.report, _reading(store, row.update)) for row in reported]
        return mean_of_updates(start, updates, settings, manifest, usual_in(store.database, job.id, round_.number))
    start = store.models.load(job, job.version)
    reports = [decode_report(row.data, manifest, settings.training) for row in reported]
    steps = [Step(row.seed, tuple(row.units), report) for row, report in zip(reported, reports, strict=True)]
    return step_of_scalars(start, round_.number, round_.iteration, steps, settings, manifest)


def _reading(store: Store, update: str) -> Callable[[], Mapping[str, Any]]:
    return lambda: store.blobs.tensors(update)


def mean_of_updates(
    start: Model, updates: Sequence[Update], settings: JobSettings, manifest: Manifest, usual: Norms
) -> Outcome:
    """One update at a time; those that go far beyond what is usual are left out."""
    refused: list[tuple[str, str]] = []
    mean = Mean()
    reports: list[dict[str, Any]] = []
    for update in updates:
        if why := beyond(update.norms, usual, settings.norm_bound):  # it came before there was a median
            refused.append((update.task, why))
            continue
        mean.add(update.tensors(), update.report["examples"])
        reports.append(update.report)
    change = mean.changes(start.weights)
    return Outcome(moved(start, change, settings, manifest), change, reports, refused=tuple(refused))


def step_of_scalars(
    start: Model, number: int, iteration: int, steps: Sequence[Step], settings: JobSettings, manifest: Manifest
) -> Outcome:
    """All clients' numbers as one record, and the step that everybody repeats from it."""
    participants = tuple(Participant(step.seed, step.units, as_published(step.report)) for step in steps)
    reports = [step.report for step in steps]
    record = StepRecord(start.version + 1, number, iteration, participants, _mean_head_gradient(reports))
    found = [{"examples": report.examples, "loss": report.loss} for report in reports]
    return Outcome(repeated(start, record, settings, manifest), {}, found, record)


def _mean_head_gradient(reports: list[ScalarReport]) -> Any:
    if not reports or reports[0].head_gradient is None:
        return None
    mean = Mean()
    for report in reports:
        assert report.head_gradient is not None
        mean.add({"head": report.head_gradient}, report.examples)
    return mean.changes({"head": 0 * reports[0].head_gradient})["head"]
