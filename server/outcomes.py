"""Aggregate: what a round, or an iteration of it, makes of the reports that were accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from edge_client.optimizers import Weights
from edge_client.scalars import Participant, ScalarReport, StepRecord, as_published, decode_report
from server.aggregation import Mean, beyond
from server.jobs import Job
from server.models import Model, moved, repeated
from server.store import Store


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
    if job.settings.training.mode == "epoch":
        return _mean_of_updates(store, job, round_, reported)
    return _step_of_scalars(store, job, round_, reported)


def _mean_of_updates(store: Store, job: Job, round_: Row[Any], reported: Sequence[Row[Any]]) -> Outcome:
    """One update at a time."""
    start = store.models.load(job, round_.version)
    others = [row.norms for row in reported]
    refused: list[tuple[str, str]] = []
    mean = Mean()
    reports: list[dict[str, Any]] = []
    for row in reported:
        if why := beyond(row.norms, others, job.settings.norm_bound):  # it came before there was a median
            refused.append((row.id, why))
            continue
        mean.add(store.blobs.tensors(row.update), row.report["examples"])
        reports.append(row.report)
    change = mean.changes(start.weights)
    model = moved(start, change, job, store.bundles.manifest(job.bundle))
    return Outcome(model, change, reports, refused=tuple(refused))


def _step_of_scalars(store: Store, job: Job, round_: Row[Any], reported: Sequence[Row[Any]]) -> Outcome:
    manifest = store.bundles.manifest(job.bundle)
    training = job.settings.training
    start = store.models.load(job, job.version)
    participants: list[Participant] = []
    reports: list[ScalarReport] = []
    for row in reported:
        report = decode_report(row.data, manifest, training)
        participants.append(Participant(row.seed, tuple(row.units), as_published(report)))
        reports.append(report)
    record = StepRecord(
        start.version + 1, round_.number, round_.iteration, tuple(participants), _mean_head_gradient(reports)
    )
    model = repeated(start, record, job, manifest)
    found = [{"examples": report.examples, "loss": report.loss} for report in reports]
    return Outcome(model, {}, found, record)


def _mean_head_gradient(reports: list[ScalarReport]) -> Any:
    if not reports or reports[0].head_gradient is None:
        return None
    mean = Mean()
    for report in reports:
        assert report.head_gradient is not None
        mean.add({"head": report.head_gradient}, report.examples)
    return mean.changes({"head": 0 * reports[0].head_gradient})["head"]
