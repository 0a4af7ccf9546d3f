"""Average what devices say of their own examples: losses, and the scores of what they evaluated."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from edge_client.bundle.manifest import Manifest
from edge_client.tasks.task import Score, TaskType
from edge_client.wire.protocol import Report
from server.jobs.settings import JobSettings
from server.strategy.mean import mean_claim


def as_reported(
    reports: Sequence[Report], settings: JobSettings, task: TaskType, unlearned: Collection[int] = ()
) -> dict[str, float]:
    """Average the numbers that devices report of their examples, by the job's rule; see `on_devices`."""
    counts, bound, robust = [report.examples for report in reports], settings.weight_bound, settings.is_robust
    loss = mean_claim([report.loss for report in reports], counts, bound, robust=robust)
    return {"examples": sum(counts), "loss": loss, **on_devices(reports, bound, task, unlearned, robust=robust)}


def figures_of(task: TaskType, score: Score) -> dict[str, float]:
    """Keep finite figures: an infinite perplexity cannot be drawn."""
    shares = {one.name: score.means[one.name] for one in task.scores if one.share and one.name in score.sums}
    return {name: value for name, value in (task.told(score) | shares).items() if math.isfinite(value)}


def on_devices(
    reports: Sequence[Report],
    bound: float,
    task: TaskType,
    unlearned: Collection[int] = (),
    *,
    robust: bool = False,
) -> dict[str, float]:
    """Average devices' evaluations on examples of their own, and count them; none weighs much more than the others.

    Args:
        reports: a round's, as they were taken.
        bound: the most that one may weigh, over the median weight.
        task: the type whose scores they report.
        unlearned: slots of reports whose global model had a task layer that nobody had trained: what it got right is
            chance, and is left out.
        robust: average by a robust rule, so that few malicious ones do not move the mean.
    """
    measured = {place: report for place, report in enumerate(reports) if report.held_back}
    if not measured:
        return {}
    known: dict[str, float] = {"evaluated": len(measured)}
    learned = [report for place, report in measured.items() if place not in unlearned]
    for whose, told in (("global", learned), ("personal", list(measured.values()))):
        figures = figures_of(task, _mean(told, bound, task, whose, robust=robust)) if told else {}
        known |= {f"{name}_{whose}": value for name, value in figures.items()}
    return known


def unlearned_in(manifest: Manifest, bases: Sequence[int]) -> frozenset[int]:
    """Find the slots of updates that began with version 0, where that has a task layer which nobody has trained."""
    return frozenset(place for place, base in enumerate(bases) if base == 0) if manifest.head else frozenset()


def _mean(reports: Sequence[Report], bound: float, task: TaskType, whose: str, *, robust: bool) -> Score:
    """Average the scores of one prediction over the devices that reported them."""
    told = [(report.held_back, _sums(report, task, whose)) for report in reports]
    names = [score.name for score in task.scores]
    means: dict[str, float] = {}
    for name in names:
        own = [(held_back, sums[name]) for held_back, sums in told if name in sums]
        if own:
            held = [held_back for held_back, _ in own]
            means[name] = mean_claim([value / rows for rows, value in own], held, bound, robust=robust)
    return Score(1, means)


def _sums(report: Report, task: TaskType, whose: str) -> dict[str, float]:
    """Return a device's sums, each share bounded by the number of its predictions."""
    right, sums = (
        (report.right_global, report.sums_global)
        if whose == "global"
        else (report.right_personal, report.sums_personal)
    )
    limited = dict(sums)
    for score in task.scores:
        if score.share and score.name in sums:
            limited[score.name] = min(max(sums[score.name], 0.0), report.held_back)
    return limited | {task.counted: float(right)}
