"""The mean of the devices that agree: a minority that goes against all others together is left out.

Devices with true labels pull the weights to where all of them want them, each by its own part; at worst, where one
knows nothing of what the other knows, they have nothing to say to each other. Malicious devices pull against the others
and, if they act alike, along with each other. So the devices are parted in two where the two sides disagree most, by
the sum of products between their fingerprints; and the smaller side is left out if that sum is further below zero than
chance has it. Between honest devices, whatever their shares of the classes, hardly a parting has a sum below zero.

A device's fingerprint is a sum over its rounds: once a fleet has learned, an honest device's change is what is peculiar
to it, and a round by itself would part the honest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from server.aggregation.rule import FEWEST, Numbers, Rule, middle, no_longer, sizes_of, weighted_mean

Places = NDArray[np.bool_]
"""A mask over devices: True for those that are away from the others."""
STARTS = 32
"""The number of partings that a search begins with."""


def opposed(said: Numbers, before: Places, freedom: float) -> dict[int, float]:
    """Find devices that go against the others, by their cosine with the others' sum.

    Those that were left out `before` are parted first while they still go against the others: once a fleet has learned
    its honest devices say little more, and malicious ones that are left out ever more, by which others must not be
    judged. Then the rest is parted again.
    """
    devices = len(said)
    products, away, most = said @ said.T, np.zeros(devices, bool), (devices - 1) // 2
    while (left := most - int(away.sum())) > 0:
        inside = np.flatnonzero(~away)
        side = _against(products[np.ix_(inside, inside)], freedom, left, before[inside])
        if not side.any():
            break
        away[inside[side]] = True
    return _themselves(said, products, away, freedom)


def _against(products: Numbers, freedom: float, most: int, before: Places) -> Places:
    """Find the side that is parted off; nobody where chance may explain it.

    The lowest of all partings is compared with the bound of the lowest. The devices that were left out before are one
    parting that is known, so they stay out by the bound of one: as a fleet learns, its devices agree less.
    """
    devices = len(products)
    if devices < FEWEST:
        return np.zeros(devices, bool)
    usual, of_least = float(np.median(np.diag(products))), by_chance(devices, freedom)
    sides = [(parted(products, most), of_least)]
    if before.any() and before.sum() <= most:
        side = settled(products, before, most)
        same = side & before
        sides = [(side, of_least), (same, of_one(int(same.sum()), devices, freedom)), *sides]
    found = (side for side, bound in sides if between(products, side) < -bound * usual)
    return next(found, np.zeros(devices, bool))


def _themselves(said: Numbers, products: Numbers, away: Places, freedom: float) -> dict[int, float]:
    """Keep devices that go against the others by themselves too: against two at least, as one may be malicious."""
    others = said[~away].sum(0)
    lengths = np.maximum(sizes_of(said) * float(np.sqrt(others @ others)), np.finfo(np.float64).tiny)
    cosines, against = said @ others / lengths, (products[:, ~away] < 0).sum(1)
    alone = away & (cosines < -1 / freedom**0.5) & (against >= FEWEST - 1)
    return {int(place): float(cosines[place]) for place in np.flatnonzero(alone)}


def by_chance(devices: int, freedom: float) -> float:
    """Bound how far the least sum of independent devices' partings is below zero by chance, at a length of one.

    That is 0.38 devices^(3/2) times the spread of their products (half of the ground state of a spin glass); of many
    devices with little freedom their part along one direction adds 0.16 devices^2/freedom.
    """
    return 0.5 * devices**1.5 / freedom**0.5 + 0.2 * devices**2 / freedom


def of_one(away: int, devices: int, freedom: float) -> float:
    """Bound the sum of one parting of independent devices at a length of one: twice its spread."""
    return 2.0 * (away * (devices - away) / freedom) ** 0.5


def between(products: Numbers, away: Places) -> float:
    """Sum the products between two sides."""
    return float(products[away][:, ~away].sum())


def parted(products: Numbers, most: int) -> Places:
    """Return the side, of at most `most` devices, of the parting with the least sum; nobody if none is below zero.

    It is the best of partings that no single device can improve by changing sides: an exhaustive search is infeasible.
    """
    best, least = np.zeros(len(products), bool), 0.0
    for start in _starts(products, most):
        away = settled(products, start, most)
        if (found := between(products, away)) < least:
            best, least = away, found
    return best


def _starts(products: Numbers, most: int) -> Iterator[Places]:
    """Yield first sides: devices that agree least with the others, and both sides of the main direction."""
    apart = products - np.diag(np.diag(products))
    places, sums = np.arange(len(apart)), apart.sum(1)
    for place in np.argsort(sums, kind="stable")[:STARTS]:
        yield places == place
    rank = np.argsort(np.linalg.eigh(np.diag(sums) - apart)[1][:, 0], kind="stable")
    for ends in (rank, rank[::-1]):
        yield np.isin(places, ends[:most])


def settled(products: Numbers, away: Places, most: int) -> Places:
    """Let devices change sides one by one, whoever lowers the sum most, until none does; one at least stays away."""
    apart, away = products - np.diag(np.diag(products)), away.copy()
    sides = np.where(away, 1.0, -1.0)
    worse = (apart @ sides) * sides  # by how much the sum grows if a device changes sides
    tolerance = 1e-12 * float(np.abs(apart).sum())
    while True:
        count = int(away.sum())
        barred = (away & (count == 1)) | (~away & (count >= most))
        place = int(np.argmin(np.where(barred, np.inf, worse)))
        if barred[place] or not worse[place] < -tolerance:
            return away
        away[place] = not away[place]
        worse -= 2 * apart[place] * sides * sides[place]
        worse[place] *= -1
        sides[place] *= -1


def shortened(changes: Numbers, weights: Numbers) -> Numbers:
    """Average changes of which none is longer than the median one: those of few classes go several times as far."""
    return weighted_mean(no_longer(changes, middle(sizes_of(changes), weights)), weights)


AGREEING = Rule(shortened, judge=opposed)
