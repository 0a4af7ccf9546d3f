"""Keep the fingerprints of devices over all of their rounds, by which a rule may judge them.

A sum for each device, kept in the server's state with the weights: a server that was killed goes on with the same bits.
In a round no fingerprint is longer than the median device's. A round counts by how far it moves the fleet
as a whole, squared: once a fleet has learned, its devices' fingerprints are what each of them alone would have, and the
honest contradict each other. They do not contradict themselves: a device whose update is opposed to its own sum told
the truth until it was believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from server.aggregation.rule import CLEARLY, Judge, Numbers, cosines_of, middle, no_longer, sizes_of

MOST_NUMBERS = 2048
"""The most numbers of a device: of more, sums with fixed random signs are kept, which preserve products on average."""
_MORE = 3
_SUM, _LEFT_OUT, _FURTHEST, _VERSION = slice(-_MORE), -3, -2, -1
"""The values that are kept of a device beside its sum: why it was left out in its last round, how far a round had moved
the fleet at most by then, and that round's version."""
_HEARD, _AGAINST_OTHERS, _AGAINST_ITSELF = 0.0, 1.0, 2.0
"""The reasons, as they are kept."""
_LARGEST = 1e30
"""The largest value kept: it fits in 32 bits, as does a sum of some."""
TURNS = 3.0
"""The number of standard deviations of independent fingerprints' cosine from which a device contradicts its own sum."""
KEPT_DEVICES = 1000
"""The most devices that are kept: those with the latest rounds."""


class Heard(NamedTuple):
    """The state that a round leaves, and the devices that are left out of it: those `away` and those that `turned`."""

    away: Mapping[int, float]
    """The devices that go against the others, by their positions, each with its cosine with them."""
    turned: Mapping[int, float]
    """The other devices that go against their own earlier rounds, each with its cosine with these."""
    sums: Weights
    """The sums of all devices' fingerprints, by their ids."""
    agreeing: frozenset[int]
    """The devices that clearly agree with the others, by their positions."""


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
    sums, why = np.zeros((len(everybody), now.shape[1])), np.full(len(everybody), _HEARD)
    for place, device in enumerate(everybody):
        if device in before:
            sums[place], why[place] = before[device][_SUM], before[device][_LEFT_OUT]
    here = slice(len(devices))
    turned = _turned(now, sums[here], why[here], fingerprints.freedom)
    believed = why[here] == _HEARD
    moved = _moved(now[believed] if believed.any() else now)
    furthest = max([moved, *(float(own[_FURTHEST]) for own in before.values())])
    now *= (moved / furthest) ** 2 if furthest > 0 else 0.0
    sums[here] += now
    against = judge(sums, why != _HEARD, fingerprints.freedom)
    agree = _agree(sums, np.isin(np.arange(len(sums)), list(against)), fingerprints.freedom)
    away = {place: cosine for place, cosine in against.items() if place < len(devices)}
    turned = {place: cosine for place, cosine in turned.items() if place not in against}
    why[here] = _HEARD
    why[why == _AGAINST_OTHERS] = _HEARD  # all are judged anew; who turned in an earlier round and is absent is not
    why[list(turned)] = _AGAINST_ITSELF
    why[list(against)] = _AGAINST_OTHERS
    after = {
        device: np.array([*own, why[place], furthest, version if place < len(devices) else before[device][_VERSION]])
        for place, (device, own) in enumerate(zip(everybody, sums, strict=True))
        if device
    }
    last = sorted(after.items(), key=lambda one: (-one[1][_VERSION], one[0]))[:KEPT_DEVICES]
    kept = {device: np.clip(own, -_LARGEST, _LARGEST).astype(np.float32) for device, own in last}
    return Heard(away, turned, kept, frozenset(int(place) for place in np.flatnonzero(agree[here])))


def _turned(now: Numbers, earlier: Numbers, why: Numbers, freedom: float) -> dict[int, float]:
    """Find the devices whose update contradicts their own earlier rounds, by the cosine of the two.

    An honest device's data want the same of the weights in every round, however much the fleet has learned. If most
    devices turn, the fleet's step was too long. A device that contradicted the others before may tell the truth now.
    """
    cosines = cosines_of(now, earlier)
    turned = (cosines < -TURNS / freedom**0.5) & (why != _AGAINST_OTHERS)
    few = turned.sum() <= (len(now) - 1) // 2
    return {int(place): float(cosines[place]) for place in np.flatnonzero(turned & few)}


def _agree(sums: Numbers, away: NDArray[np.bool_], freedom: float) -> NDArray[np.bool_]:
    """Find the devices whose sums go with those of all others that are not left out."""
    inside = sums * ~away[:, None]
    return cosines_of(sums, inside.sum(0) - inside) > CLEARLY / freedom**0.5


def left_out(sums: Weights) -> list[str]:
    """Return the devices that were left out of their last rounds."""
    return [device for device, own in sums.items() if own[_LEFT_OUT] != _HEARD]


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
