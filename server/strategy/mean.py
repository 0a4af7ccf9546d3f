"""Average a round's updates with weights, one at a time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import Report
from edge_client.wire.scalars import Participant
from server.aggregation.rule import FEWEST
from server.aggregation.trimmed import trimmed
from server.aggregation.units import WEIGHT_BOUND

STEPS_BOUND = 2.0
"""The most steps that count, over the median device's, where devices weigh alike; uneven rows allow more."""


@dataclass
class _Sums:
    """The sums of one parameter over the updates that hold it."""

    far: NDArray[np.float64]
    """The sum of changes from the start, times their examples."""
    squares: NDArray[np.float64]
    """The sum of the squares of each one's part."""
    examples: float = 0.0

    def add(self, value: NDArray[Any], start: NDArray[Any], examples: float) -> None:
        far = np.subtract(value, start, dtype=np.float64)
        far *= examples
        self.far += far
        far *= far
        self.squares += far
        self.examples += examples


class Mean:
    """The mean of updates weighted by examples, apart for every parameter over those that hold it.

    Holds two sums of the model's trainable parameters, however many updates there are.
    """

    def __init__(self, start: Weights) -> None:
        self._start = start
        self._sums: dict[str, _Sums] = {}

    def add(self, update: Mapping[str, NDArray[Any]], examples: float | Mapping[str, float]) -> None:
        """Take one update into the sum, with one weight or one for each parameter; the update itself is not kept."""
        for name, value in update.items():
            if name not in self._sums:
                self._sums[name] = _Sums(np.zeros(value.shape), np.zeros(value.shape))
            weight = examples[name] if isinstance(examples, Mapping) else examples
            self._sums[name].add(value, self._start[name], weight)

    def changes(self) -> Weights:
        """Return the mean change; parameters that no update holds are not in it."""
        return {name: (sums.far / sums.examples).astype(np.float32) for name, sums in self._sums.items()}

    def errors(self) -> Weights:
        """Return the standard error of each change, as if devices' changes were independent."""
        return {name: (np.sqrt(sums.squares) / sums.examples).astype(np.float32) for name, sums in self._sums.items()}


def largest_weight(counts: Sequence[float], bound: float) -> float:
    """Return the most that one device may weigh: no more than a second one claims, nor `bound` times the median one.

    A device reports its own number of examples: no more than a share of the mean may depend on it. Of an even
    number the lower median counts; of two devices neither vouches for the other.
    """
    most = bound * statistics.median_low(counts)
    return min(most, sorted(counts)[-2]) if len(counts) >= FEWEST else most


def bounded(counts: Sequence[float], bound: float) -> list[float]:
    """Shorten the weights of a round's devices to what one may weigh."""
    most = largest_weight(counts, bound) if counts else 0.0
    return [min(count, most) for count in counts]


def _within(counts: Sequence[float], bound: float) -> list[float]:
    """Shorten the weights of a unit's holders, who may be few, to `bound` times the median one."""
    most = bound * statistics.median_low(counts)
    return [min(count, most) for count in counts]


def mean_claim(values: Sequence[float], counts: Sequence[int], bound: float, *, robust: bool) -> float:
    """Average a number that devices report of themselves, such as a loss, weighted by the examples behind each.

    A robust rule leaves out the largest and the smallest ones, and no device weighs more than the median one. In the
    plain mean no number is larger than `bound` times the median one, or than 1, as a share may be, nor below zero.
    """
    if robust:
        weights = np.array(bounded(counts, WEIGHT_BOUND), np.float64)
        return float(trimmed(np.array(values, np.float64)[:, None], weights)[0])
    weights, largest = bounded(counts, bound), max(1.0, bound * statistics.median_low(values))
    within = [min(max(value, 0.0), largest) for value in values]
    return sum(value * weight for value, weight in zip(within, weights, strict=True)) / sum(weights)


def mean_steps(reports: Sequence[Report], lengths: Sequence[float], bound: float) -> float:
    """Average the local steps of updates, weighted by examples, both bounded by the median device's.

    A device reports its own number of steps: the head's gradient is a change divided by their mean. More than twice
    as many as the median device's are believed of one whose head goes further too, as many times at most.

    Args:
        reports: the devices' reports.
        lengths: the norms of their heads' changes.
        bound: how often the median one may weigh.
    """
    weights = bounded([report.examples for report in reports], bound)
    steps = _within([report.steps for report in reports], max(bound, STEPS_BOUND))
    usual, far = statistics.median_low(report.steps for report in reports), statistics.median_low(lengths)
    most = [STEPS_BOUND * usual * max(1.0, length / far if far > 0 else 1.0) for length in lengths]
    each = zip(steps, most, weights, strict=True)
    return sum(min(own, largest) * weight for own, largest, weight in each) / sum(weights)


def bounded_scalars(clients: Sequence[Participant], bound: float) -> list[Participant]:
    """Bound examples in mode iteration, in each unit too: a record has one weight for a client, the least."""
    largest = bounded([client.report.examples for client in clients], bound)
    for unit in {unit for client in clients for unit in client.units}:
        holders = [number for number, client in enumerate(clients) if unit in client.units]
        counts = _within([clients[number].report.examples for number in holders], bound)
        for number, count in zip(holders, counts, strict=True):
            largest[number] = min(largest[number], count)
    return [
        replace(client, report=replace(client.report, examples=int(most)))
        for client, most in zip(clients, largest, strict=True)
    ]


class Holder(NamedTuple):
    """A client whose update is averaged."""

    inverse_variance: Mapping[int, float]
    """The weight of the estimate of each unit relative to a true gradient (`Estimator.inverse_variance`)."""
    examples: int


def weights_of(holders: Sequence[Holder], bound: float, manifest: Manifest) -> list[dict[str, float]]:
    """Weigh clients in each parameter: by examples, bounded in the round and among holders, and inverse variance.

    The head's gradient is the same for all.
    """
    of_unit: dict[int, list[int]] = defaultdict(list)
    for client, holder in enumerate(holders):
        for unit in holder.inverse_variance:
            of_unit[unit].append(client)
    weights: list[dict[str, float]] = [{} for _ in holders]
    believed = bounded([holder.examples for holder in holders], bound)
    for unit, clients in of_unit.items():
        counts = _within([believed[client] for client in clients], bound)
        for client, count in zip(clients, counts, strict=True):
            clear = count * holders[client].inverse_variance[unit]
            weights[client].update((parameter.name, clear) for parameter in manifest.units[unit].parameters)
    for client, count in enumerate(believed):
        weights[client].update((parameter.name, count) for parameter in manifest.head)
    return weights
