"""Bound the numbers of a report by what its device declared and its task could have processed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_client.bundle.manifest import Manifest
from edge_client.tasks.registry import task_named
from edge_client.training.epoch import steps_in
from edge_client.training.features import MOST
from edge_client.wire.protocol import Report, Training
from edge_client.wire.scalars import ScalarReport
from server.errors import Refusal

LARGEST_DERIVATIVE = 1e6
"""The largest derivative of a loss; a step along a larger one would move weights out of all bounds."""


def held_to(report: Report, declared: int | None, training: Training, manifest: Manifest) -> Report:
    """Bound a report's examples and steps by what there can be; refuse impossible counts.

    A file that has grown since the check-in makes an honest device count more than it declared: it keeps its slot,
    with the weight that it declared.
    """
    check_held_back(report, declared, training, manifest)
    possible = training.iterations if declared is None else steps_in(training, declared)  # a row in each at least
    steps = min(report.steps, possible or report.steps)
    most = min(report.examples, steps * training.batch)
    looked_at = MOST if declared is None else min(MOST, declared)
    rows = task_named(manifest.model.task).most_feature_rows(looked_at, training.length)
    measured = min(report.measured, rows)
    examples = most if declared is None else min(most, declared)
    return replace(report, examples=examples, steps=steps, measured=measured)


def scalars_held_to(report: ScalarReport, declared: int | None) -> ScalarReport:
    """Bound examples in mode iteration, where the batch is a bound already."""
    return report if declared is None else replace(report, examples=min(report.examples, declared))


def check_held_back(report: Report, declared: int | None, training: Training, manifest: Manifest) -> None:
    """Refuse more right predictions than there are, and more examples than the device has."""
    right = max(report.right_global, report.right_personal)
    if right > report.held_back:
        raise _invalid(f"its report counts {right} right of {report.held_back} held back")
    predictions = training.length if task_named(manifest.model.task).per_token else 1
    if declared is not None and report.held_back > declared * predictions:
        raise _invalid(f"its report counts {report.held_back} held back, the device declared {declared} examples")


def check_derivatives(report: ScalarReport) -> None:
    """Refuse derivatives that no loss has, before there are others to compare with."""
    for values in (report.jvp, report.head_jvp, report.head_gradient):
        if values is not None and (largest := float(np.abs(values).max(initial=0.0))) > LARGEST_DERIVATIVE:
            what = f"it holds a derivative of {largest:.3g}; at most {LARGEST_DERIVATIVE:g} is taken"
            raise Refusal(422, "norm", f"the report is refused: {what}")


def _invalid(why: str) -> Refusal:
    return Refusal(422, "invalid", f"the update is refused: {why}")
