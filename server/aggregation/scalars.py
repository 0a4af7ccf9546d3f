"""Shorten reports' derivatives in mode iteration before they are published.

Devices repeat the server's step from the published record, by the mean: a rule therefore shortens before publication,
so that all of them take the same step. Derivatives are compared among those who train the same units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from edge_client.arrays import Floats
from edge_client.wire.scalars import Participant, ScalarReport
from server.aggregation.rule import FAR, FEWEST, Numbers, Rule, shares_kept


def shortened_reports(
    rule: Rule, clients: Sequence[Participant]
) -> tuple[list[Participant], tuple[tuple[str, str], ...]]:
    """Return the reports as they count, and a reason by seed for each that is far from the others."""
    of_units = np.zeros(len(clients))
    for units in sorted({client.units for client in clients}):
        alike = [number for number, client in enumerate(clients) if client.units == units]
        of_units[alike] = _lengths(rule, [clients[number].report for number in alike], _of_units)
    of_head = _lengths(rule, [client.report for client in clients], _of_head)
    near = np.maximum(of_units, of_head) <= FAR  # who goes far in one of them is left out of both
    kept = zip(clients, near * shares_kept(of_units, 1.0), near * shares_kept(of_head, 1.0), strict=True)
    smaller = [replace(client, report=_times(client.report, units, head)) for client, units, head in kept]
    return smaller, tuple(_odd(clients, (("units", of_units), ("head", of_head))))


def _of_units(report: ScalarReport) -> Floats | None:
    return report.jvp


def _of_head(report: ScalarReport) -> Floats | None:
    return report.head_jvp if report.head_gradient is None else report.head_gradient


def _lengths(rule: Rule, reports: Sequence[ScalarReport], part: Callable[[ScalarReport], Floats | None]) -> Numbers:
    """Compute the lengths of derivatives over the rule's limit; zeros where too few report to compare them."""
    values = [value for value in map(part, reports) if value is not None]
    if rule.limit is None or len(values) < max(FEWEST, len(reports)):
        return np.zeros(len(reports))
    sizes = np.array([float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) for value in values])
    return sizes / max(rule.limit(sizes, np.ones(len(sizes))), np.finfo(np.float64).tiny)


def _times(report: ScalarReport, units: float, head: float) -> ScalarReport:
    return replace(
        report,
        jvp=_scaled(report.jvp, units),
        head_jvp=None if report.head_jvp is None else _scaled(report.head_jvp, head),
        head_gradient=None if report.head_gradient is None else _scaled(report.head_gradient, head),
    )


def _scaled(values: Floats, share: float) -> Floats:
    return values if share == 1.0 else (values * share).astype(np.float32)


def _odd(clients: Sequence[Participant], lengths: Iterable[tuple[str, Numbers]]) -> Iterable[tuple[str, str]]:
    for part, of_part in lengths:
        for client, times in zip(clients, of_part, strict=True):
            if times > FAR:
                yield str(client.seed), f"the derivatives of its {part} are {times:.1f} times as large as is usual"
