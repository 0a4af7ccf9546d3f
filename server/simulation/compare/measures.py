"""Metrics of a run: each is a row of a table, taken from the run's rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Literal

import msgspec

from edge_client.tasks.task import ScoreKind
from server.simulation.compare.convergence import (
    best,
    converged_round,
    fall,
    last,
    least,
    round_of_share,
    seconds_until,
)
from server.simulation.compare.runs import Run
from server.simulation.compare.scores import MAIN_SCORES, SCORES

Quantity = Literal["percent", "points", "seconds", "bytes", "number"]
Section = Literal["score", "less", "time", "cost"]


class Measure(msgspec.Struct, frozen=True):
    key: str
    heading: str
    section: Section
    unit: Quantity
    of: Callable[[Run], float | None]
    """Reads the value; None where the run does not have it."""


def main_score(*runs: Run) -> str:
    """Choose the score that is compared and drawn first: the task's main one; accuracy until there is one."""
    return next((name for name in MAIN_SCORES if any(run.points(name) for run in runs)), "accuracy")


def metrics(interval: int) -> list[Measure]:
    """List all metrics; the paper's rule of convergence looks at intervals of so many rounds."""
    return [
        *(metric for score, kind in SCORES.items() for metric in _of_score(score, kind)),
        Measure("rounds", "rounds", "time", "number", lambda run: run.rounds[-1].round if run.rounds else None),
        Measure("seconds", "seconds", "time", "seconds", lambda run: _total(run, "seconds")),
        Measure("rounds_to_95", "rounds to 95 %", "time", "number", lambda run: round_of_share(_main(run))),
        Measure("seconds_to_95", "seconds to 95 %", "time", "seconds", _seconds_to_share),
        Measure("converged_round", "converged in round", "time", "number",
               lambda run: converged_round(_main(run), interval)),
        Measure("clock", "simulated time", "time", "number", lambda run: last(run.points("clock"))),
        Measure("staleness", "versions late", "time", "number", lambda run: _mean(run, "staleness")),
        Measure("step_seconds", "seconds a step", "time", "seconds", lambda run: _mean(run, "step_seconds")),
        Measure("bytes_up", "bytes up", "cost", "bytes", partial(_per_client, field="bytes_up")),
        Measure("bytes_down", "bytes down", "cost", "bytes", partial(_per_client, field="bytes_down")),
        Measure("numbers_up", "numbers up", "cost", "number", partial(_per_client, field="numbers_up")),
        Measure("numbers_down", "numbers down", "cost", "number", partial(_per_client, field="numbers_down")),
        Measure("passes", "forward passes a step", "cost", "number", lambda run: _mean(run, "passes")),
        Measure("trained", "weights trained", "cost", "number", _trained),
        Measure("peak_bytes", "peak memory", "cost", "bytes", lambda run: run.summary and run.summary.peak_bytes),
    ]  # fmt: skip


def _of_score(score: str, kind: ScoreKind) -> list[Measure]:
    if not kind.share:
        return [
            Measure(f"{score}.last", f"{kind.words} final", "less", "number", lambda run: last(run.points(score))),
            Measure(f"{score}.best", f"{kind.words} best", "less", "number", lambda run: least(run.points(score))),
        ]
    return [
        Measure(f"{score}.last", f"{kind.words} final", "score", "percent", lambda run: last(run.points(score))),
        Measure(f"{score}.best", f"{kind.words} best", "score", "percent", lambda run: best(run.points(score))),
        Measure(f"{score}.fall", f"{kind.words} fall", "score", "points", lambda run: fall(run.points(score))),
    ]


def _main(run: Run) -> list[tuple[int, float]]:
    return run.points(main_score(run))


def _seconds_to_share(run: Run) -> float | None:
    reached = round_of_share(_main(run))
    return None if reached is None else seconds_until(reached, run.points("seconds"))


def _total(run: Run, field: str) -> float | None:
    values = [value for _, value in run.points(field)]
    return sum(values) if values else None


def _mean(run: Run, field: str) -> float | None:
    values = [value for _, value in run.points(field)]
    return fmean(values) if values else None


def _per_client(run: Run, field: str) -> float | None:
    """Average a field per client and round; the rounds' own numbers are sums over their clients."""
    rounds = [row for row in run.rounds if row.clients and getattr(row, field) is not None]
    clients = sum(row.clients or 0 for row in rounds)
    return sum(getattr(row, field) for row in rounds) / clients if clients else None


def _trained(run: Run) -> float | None:
    numbers = run.config.numbers
    return (numbers.unit_weights + numbers.head_weights) or None
