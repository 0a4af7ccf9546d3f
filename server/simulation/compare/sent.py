"""Simulated runs where others look at theirs: a round's numbers as points of a sink."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from server.simulation.compare.runs import CONFIG, RoundLine, Run
from server.sinks.sink import Curves, Point, open_sink, send


def send_runs(runs: Sequence[Run], to: str) -> int:
    """Send each run under its folder, relative to the one that holds them all; return how many points were new."""
    holder = os.path.commonpath([run.folder.parent for run in runs])
    return sum(_send(run, run.folder.relative_to(holder).as_posix(), to) for run in runs)


def _send(run: Run, name: str, to: str) -> int:
    sink = open_sink(to, Curves(str(run.folder), name, msgspec.to_builtins(run.config)))
    sent = send(sink, _points(run))
    if run.summary is not None:
        sink.end()
    return sent


def _points(run: Run) -> Iterator[Point]:
    """Yield points with the rounds' times as if the first had begun when the run was asked for."""
    begun = (run.folder / CONFIG).stat().st_mtime
    ends = accumulate((row.seconds for row in run.rounds), initial=begun)
    next(ends)
    for row, end in zip(run.rounds, ends, strict=True):
        for name, value in _numbers(row):
            if value is not None and math.isfinite(value):
                yield Point(row.round, name, float(value), end)


def _numbers(row: RoundLine) -> Iterator[tuple[str, float | None]]:
    told = msgspec.to_builtins(row)
    yield from ((name, value) for name, value in told.items() if name not in ("round", "scores"))
    yield from row.scores.items()
