"""Keep the fingerprints of devices over all of their rounds, by which a rule may judge them.

A sum for each device, kept in the server's state with the weights: a server that was killed goes on with the same bits.
In a round no fingerprint is longer than the median device's. A round counts by how far it moves the fleet
as a whole, squared: once a fleet has learned, its devices' fingerprints are what each of them alone would have, and the
honest contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edge_client.arrays import Weights
from server.aggregation.rule import Judge, Numbers, middle, no_longer, sizes_of

MOST_NUMBERS = 2048
"""The most numbers of a device: of more, sums with fixed random signs are kept, which preserve products on average."""
_MORE = 3
_SUM, _LEFT_OUT, _FURTHEST, _VERSION = slice(-_MORE), -3, -2, -1
"""The values that are kept of a device beside its sum: whether it was left out in its last round, how far a round had
moved the fleet at most by then, and that round's version."""
_LARGEST = 1e30
"""The largest value kept: it fits in 32 bits, as does a sum of some."""
KEPT_DEVICES = 1000
"""The most devices that are kept: those with the latest rounds."""


class Heard(NamedTuple):
    """The state that a round leaves, and the devices that are left out of it."""

    away: Mapping[int, float]
    """The devices that are left out, by their positions, each with its cosine with the others."""
    sums: Weights
    """The sums of all devices' fingerprints, by their ids."""


class Fingerprints(NamedTuple):
    """The fingerprints of a round's updates, one row for each device."""

    said: Numbers
    """The fingerprints, [devices, numbers]."""
    freedom: float
    """The number of dimensions in which independent devices would be as far apart."""


def heard(judge: Judge, known: Weights, version: int, devices: Sequence[str], fingerprints: Fingerprints) -> Heard:
    """Judge a round's devices by their fingerprints so far, among all that are known.

    Few malicious devices stay a minority so in a round in which they happen to be many.
    """
    before, now = _comparable(known, fingerprints.said.shape[1]), _bounded(fingerprints.said)
    everybody = [*devices, *sorted(before.keys() - set(devices))]
    out = set(left_out(before))
    were_out = np.array([device in out for device in everybody], bool)
    believed = ~were_out[: len(devices)]
    moved = _moved(now[believed] if believed.any() else now)
    furthest = max([moved, *(float(own[_FURTHEST]) for own in before.values())])
    now *= (moved / furthest) ** 2 if furthest > 0 else 0.0
    sums = np.zeros((len(everybody), now.shape[1]))
    for place, device in enumerate(everybody):
        if device in before:
            sums[place] = before[device][_SUM]
    sums[: len(devices)] += now
    away = judge(sums, were_out, fingerprints.freedom)
    after = {
        device: np.array([*own, place in away, furthest, version if place < len(devices) else before[device][_VERSION]])
        for place, (device, own) in enumerate(zip(everybody, sums, strict=True))
        if device
    }
    last = sorted(after.items(), key=lambda one: (-one[1][_VERSION], one[0]))[:KEPT_DEVICES]
    here = {place: cosine for place, cosine in away.items() if place < len(devices)}
    return Heard(here, {device: np.clip(own, -_LARGEST, _LARGEST).astype(np.float32) for device, own in last})


def left_out(sums: Weights) -> list[str]:
    """Return the devices that were left out of their last rounds."""
    return [device for device, own in sums.items() if own[_LEFT_OUT] > 0]


def _comparable(known: Weights, numbers: int) -> Weights:
    """Keep devices whose sums have the same numbers: without measured features they were of units."""
    return {device: own for device, own in known.items() if len(own) == numbers + _MORE}


def _moved(said: Numbers) -> float:
    """Compute the length of the mean beyond half of its square for devices that have nothing in common."""
    mean = said.mean(0)
    return max(0.0, float(mean @ mean) - float(np.square(said).sum()) / len(said) ** 2 / 2) ** 0.5


def _bounded(said: Numbers) -> Numbers:
    sizes = sizes_of(said)
    return no_longer(said, middle(sizes, np.ones(len(sizes))))


def shortened(fingerprints: Fingerprints) -> Fingerprints:
    """Project fingerprints onto no more numbers than are kept of each device."""
    devices, numbers = fingerprints.said.shape
    if numbers <= MOST_NUMBERS:
        return fingerprints
    drawn = np.random.Philox(key=0).random_raw(numbers)  # the same in every version of numpy
    place, sign = (drawn % MOST_NUMBERS).astype(np.int64), np.where(drawn >> 63, 1.0, -1.0)
    sums = np.zeros((devices, MOST_NUMBERS))
    for device, own in enumerate(fingerprints.said):
        sums[device] = np.bincount(place, own * sign, MOST_NUMBERS)
    return Fingerprints(sums, 1 / (1 / fingerprints.freedom + 1 / MOST_NUMBERS))
