"""Numbers as integers that can be added without a rounding, and whose sum cannot leave its range.

A change travels in 32 bits, so that an update is as long as it would be without: a number of at most `CLIP`, times the
device's weight, at the finest scale at which the sum over all devices of the round fits. A report's numbers travel in
64 bits. Both wrap around, as masks do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.wire.protocol import Report

CLIP = 2.0
"""The most that a round may change a number; beyond it is cut off."""
FEWEST = 3
"""The fewest devices whose sum a device helps to open, whatever the server says."""
MOST = 4096
"""Devices of a sum."""
WHOLE = 1 << 16
"""The weight of a device with the most examples that count."""
_REAL = 1 << 20
_LARGEST_REAL, _LARGEST_COUNT = float(1 << 28), 1 << 40

TOLD, HEAD, UNITS = 0, 1, 2
"""Numbers of the parts of a sum: what reports say, the head, and unit 0; those of further units follow."""
Parts = dict[int, NDArray[Any]]
"""Integers by their part."""


def scale(count: int) -> int:
    """Give the integer that a change of 1 becomes, where so many devices are added."""
    return 1 << int(np.floor(np.log2((2**31 - 1) / (count * CLIP))))


def weight(examples: int, cap: int) -> int:
    """Compute a weight by examples, of which no more than the cap count."""
    return max(1, round(WHOLE * min(examples, cap) / cap))


def cut(change: Array) -> int:
    """Count the numbers beyond the clip."""
    return int((np.abs(change) > CLIP).sum())


def encoded(change: Array, weighs: int, count: int) -> NDArray[np.uint32]:
    """Encode a flat change with its weight, which is last."""
    clipped = np.clip(change.astype(np.float64), -CLIP, CLIP)
    whole = np.rint(clipped * (scale(count) * weighs / WHOLE)).astype(np.int64)
    return np.append(whole, weighs).astype(np.uint32)  # modulo 2^32


def decoded(total: NDArray[np.uint32], count: int) -> tuple[Array, int]:
    """Decode the mean change of a sum, and the sum of weights; no change where these are impossible."""
    weighs = int(total[-1])
    if not 0 < weighs <= count * WHOLE:
        return np.zeros(0, np.float32), weighs
    summed = total[:-1].view(np.int32).astype(np.float64)
    return (summed * (WHOLE / (scale(count) * weighs))).astype(np.float32), weighs


# --- what reports say ------------------------------------------------------------------------------------------------

_WHOSE = "global", "personal"


def told_size(scores: Sequence[str]) -> int:
    return 9 + 2 * len(scores)


def told(report: Report, weighs: int, scores: Sequence[str]) -> NDArray[np.uint64]:
    """Encode a report as integers; `scores` are the task's beside the counted one."""
    counts = [1, report.examples, report.steps, weighs]
    held = [int(report.held_back > 0), report.held_back, report.right_global, report.right_personal]
    sums = (report.sums_global, report.sums_personal)
    reals = [report.loss * weighs / WHOLE, *(own.get(name, 0.0) for own in sums for name in scores)]
    whole = [round(min(max(real, -_LARGEST_REAL), _LARGEST_REAL) * _REAL) for real in reals]
    return np.array([min(count, _LARGEST_COUNT) for count in counts + held] + whole, np.int64).view(np.uint64)


@dataclass(frozen=True)
class Pooled:
    """The reports of all devices, added up."""

    clients: int
    evaluated: int
    """The number of devices that evaluated on examples held back."""
    report: Report
    """The report, as if one device had all examples."""


def pooled(total: NDArray[np.uint64], scores: Sequence[str]) -> Pooled:
    values = [int(value) for value in total.view(np.int64)]
    clients, examples, steps, weighs, evaluated, held_back, right, own = values[:8]
    loss, *sums = (value / _REAL for value in values[8:])
    by_whose: Mapping[str, dict[str, float]] = {
        whose: dict(zip(scores, sums[place * len(scores) :], strict=False)) if held_back else {}
        for place, whose in enumerate(_WHOSE)
    }
    report = Report(
        examples=max(examples, 1),
        steps=max(round(steps / max(clients, 1)), 1),
        loss=loss * WHOLE / max(weighs, 1),
        held_back=held_back,
        right_global=right,
        right_personal=own,
        sums_global=by_whose["global"],
        sums_personal=by_whose["personal"],
    )
    return Pooled(clients, evaluated, report)
