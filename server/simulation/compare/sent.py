"""Simulated runs where others look at theirs: a round's numbers as points of a sink."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from server.simulation.compare.runs import CONFIG, Run
from server.sinks.sink import Curves, Point, open_sink, send


def send_runs(runs: Sequence[Run], to: str) -> int:
    """Each run under its folder, as seen from the one that holds them all; says how many points were new."""
    holder = os.path.commonpath([run.folder.parent for run in runs])
    return sum(_send(run, run.folder.relative_to(holder).as_posix(), to) for run in runs)


def _send(run: Run, name: str, to: str) -> int:
    sink = open_sink(to, Curves(str(run.folder), name, msgspec.to_builtins(run.config)))
    sent = send(sink, _points(run))
    if run.summary is not None:
        sink.end()
    return sent


def _points(run: Run) -> Iterator[Point]:
    """The rounds' times as if the first had begun when the run was asked for."""
    ends = (run.folder / CONFIG).stat().st_mtime + run.rounds["seconds"].cumsum()
    finite = run.rounds.where(np.isfinite(run.rounds)).stack().dropna()
    for (number, name), value in finite.items():
        yield Point(number, name, value, ends[number])
