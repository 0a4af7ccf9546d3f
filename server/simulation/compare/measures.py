"""Metrics of a run: each is a row of a table, taken from the run's rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec
import pandas as pd

from edge_client.tasks.task import ScoreKind
from server.simulation.compare.convergence import (
    best,
    converged_round,
    fall,
    last,
    least,
    round_of_share,
    seconds_to_share,
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
    """None, or no number, where the run does not say."""


def main_score(*runs: Run) -> str:
    """Choose the score that is compared and drawn first: the task's main one; accuracy until there is one."""
    return next((name for name in MAIN_SCORES if any(len(run.points(name)) for run in runs)), "accuracy")


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


def _main(run: Run) -> pd.Series:
    return run.points(main_score(run))


def _per_client(run: Run, field: str) -> float | None:
    """Return the mean per client and round; the rounds' own numbers are sums over their clients."""
    told = run.rounds[["clients", field]].query("clients > 0").dropna()
    clients = told["clients"].sum()
    return float(told[field].sum() / clients) if clients else None


def _trained(run: Run) -> float | None:
    numbers = run.config.numbers
    return (numbers.unit_weights + numbers.head_weights) or None


METRICS = (
    *(metric for score, kind in SCORES.items() for metric in _of_score(score, kind)),
    Measure("rounds", "rounds", "time", "number", lambda run: run.last_round or None),
    Measure("seconds", "seconds", "time", "seconds", lambda run: run.points("seconds").sum(min_count=1)),
    Measure("rounds_to_95", "rounds to 95 %", "time", "number", lambda run: round_of_share(_main(run))),
    Measure("seconds_to_95", "seconds to 95 %", "time", "seconds",
            lambda run: seconds_to_share(_main(run), run.points("seconds"))),
    Measure("converged_round", "converged in round", "time", "number",
            lambda run: converged_round(_main(run))),
    Measure("clock", "simulated time", "time", "number", lambda run: last(run.points("clock"))),
    Measure("staleness", "versions late", "time", "number", lambda run: run.points("staleness").mean()),
    Measure("step_seconds", "seconds a step", "time", "seconds", lambda run: run.points("step_seconds").mean()),
    Measure("bytes_up", "bytes up", "cost", "bytes", partial(_per_client, field="bytes_up")),
    Measure("bytes_down", "bytes down", "cost", "bytes", partial(_per_client, field="bytes_down")),
    Measure("numbers_up", "numbers up", "cost", "number", partial(_per_client, field="numbers_up")),
    Measure("numbers_down", "numbers down", "cost", "number", partial(_per_client, field="numbers_down")),
    Measure("passes", "forward passes a step", "cost", "number", lambda run: run.points("passes").mean()),
    Measure("trained", "weights trained", "cost", "number", _trained),
    Measure("peak_bytes", "peak memory", "cost", "bytes", lambda run: run.summary and run.summary.peak_bytes),
)  # fmt: skip
