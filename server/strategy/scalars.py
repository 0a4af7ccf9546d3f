"""Take mode iteration's step: clients' derivatives become one record, from which everybody takes the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge_client.arrays import Floats
from edge_client.bundle.manifest import Manifest
from edge_client.gradient.drawing import Draw, step_directions
from edge_client.wire.protocol import Report
from edge_client.wire.scalars import Participant, ScalarReport, StepRecord, as_published
from server.aggregation.registry import AGGREGATION_RULES, PLAIN
from server.aggregation.scalars import shortened_reports
from server.jobs.settings import JobSettings
from server.strategy.mean import Mean, bounded_scalars
from server.strategy.state import ServerState, apply_record
from server.strategy.updates import Outcome


def step_of_scalars(
    start: ServerState,
    number: int,
    iteration: int,
    clients: Sequence[Participant],
    settings: JobSettings,
    manifest: Manifest,
    draw: Draw = step_directions,
) -> Outcome:
    """Publish all clients' numbers as one record, and take the step that everybody repeats from it."""
    reports = [Report(client.report.examples, steps=1, loss=client.report.loss) for client in clients]
    clients = bounded_scalars(clients, settings.weight_bound)
    odd: tuple[tuple[str, str], ...] = ()
    if settings.aggregation != PLAIN:
        clients, odd = shortened_reports(AGGREGATION_RULES.find(settings.aggregation), clients)
    published = tuple(replace(client, report=as_published(client.report)) for client in clients)
    sent = [client.report for client in clients]
    record = StepRecord(start.version + 1, number, iteration, published, _mean_head_gradient(sent))
    return Outcome(apply_record(start, record, settings, manifest, draw), {}, reports, record, odd=odd)


def _mean_head_gradient(reports: list[ScalarReport]) -> Floats | None:
    if not reports or reports[0].head_gradient is None:
        return None
    mean = Mean({"head": 0 * reports[0].head_gradient})
    for report in reports:
        assert report.head_gradient is not None
        mean.add({"head": report.head_gradient}, report.examples)
    return mean.changes()["head"]
