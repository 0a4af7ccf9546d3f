"""Measure the time and memory of a step, in no more runs than needed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from edge_client.memory import Peaks, peaks_above_now

ENOUGH = 4.0
"""Seconds of counted rounds, after which no other begins."""


class StepCost(NamedTuple):
    """A step's time and memory."""

    cpu_ms: float
    peaks: Peaks


def taken_by(step: Callable[[], object], rounds: int) -> StepCost:
    """Memory first, then the median of `rounds` counted ones, or of as many as there is time for."""
    times: list[float] = []

    def timed() -> None:
        started = time.process_time()
        step()
        times.append(time.process_time() - started)

    begun = time.monotonic()
    peaks = peaks_above_now(timed)
    warm = len(times)
    while len(times) < warm + rounds and time.monotonic() - begun < ENOUGH:
        timed()
    return StepCost(1e3 * statistics.median(times[warm:] or times[-1:]), peaks)
