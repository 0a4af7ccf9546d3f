"""The mean of the devices that agree: a minority that goes against all others together is left out.

Devices with true labels pull the weights to where all of them want them, each by its own part; at worst, where one
knows nothing of what the other knows, they have nothing to say to each other. Malicious devices pull against the others
and, if they act alike, along with each other. So the devices are parted in two where the two sides disagree most, by
the sum of products between their fingerprints; and the smaller side is left out if that sum is further below zero than
in simulated fleets whose devices agree as these do. Between honest devices, whatever their shares of the classes,
hardly a parting has a sum below zero.

A device's fingerprint is a sum over its rounds: once a fleet has learned, an honest device's change is what is peculiar
to it, and a round by itself would part the honest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from server.aggregation.rule import (
    CLEARLY,
    FEWEST,
    Numbers,
    Rule,
    cosines_of,
    middle,
    no_longer,
    sizes_of,
    weighted_mean,
)

Places = NDArray[np.bool_]
"""A mask over devices: True for those that are away from the others."""
STARTS = 32
"""The number of partings that a search begins with."""
DRAWS = 20
"""The number of fleets that are simulated for the bound; fewer of many devices, whose least sums hardly differ."""


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
    if before.any() and before.sum() <= most:
        side = settled(products, before, most)
        if is_clear(products, side, freedom, most):
            return side
        if between(products, side & before) < of_one(products, side & before, freedom):
            return side & before
    side = parted(products, most)
    return side & is_clear(products, side, freedom, most)


def is_clear(products: Numbers, side: Places, freedom: float, most: int) -> bool:
    """Tell whether the least sum of all partings is not by chance: as if it were of one, and as the least."""
    least = between(products, side)
    return least < of_one(products, side, freedom) and least < by_chance(products, freedom, most)


def _themselves(said: Numbers, products: Numbers, away: Places, freedom: float) -> dict[int, float]:
    """Keep devices that contradict the others by themselves too, and those that clearly agree with such devices.

    By itself a device contradicts the others' sum further than independent ones usually would, and at least two of
    them, as one may be malicious; or it clearly contradicts two of them, whose classes hardly anybody else has.
    """
    clearly, sizes = CLEARLY / freedom**0.5, sizes_of(said)
    cosines, others = cosines_of(said, said[~away].sum(0)), products[:, ~away]
    contradicted = (others < -clearly * np.outer(sizes, sizes[~away])).sum(1)
    further = (cosines < -1 / freedom**0.5) & ((others < 0).sum(1) >= FEWEST - 1)
    against = away & (cosines < 0)
    alone = against & (further | (contradicted >= FEWEST - 1))
    beside = against & (cosines_of(said, said[alone].sum(0)) > clearly)
    return {int(place): float(cosines[place]) for place in np.flatnonzero(alone | beside)}


def by_chance(products: Numbers, freedom: float, most: int) -> float:
    """Bound the least sum of all partings by simulated fleets that have no malicious devices.

    Their devices agree where these clearly do and are independent otherwise. Partings through devices that agree are
    hardly the least, so where devices agree in groups the bound is nearer to zero than that of independent devices.
    """
    devices, bits = len(products), np.random.Philox(key=0)  # the same in every version of numpy
    spreads = np.sqrt(np.outer(np.diag(products), np.diag(products)) / freedom)
    largest = (2 * np.log(devices * (devices - 1) / 2)) ** 0.5  # of so many normal numbers
    clear = np.where(products > largest * spreads, products, 0.0)
    drawn = [clear + spreads * _independent(bits, devices, int(np.ceil(freedom))) for _ in range(_draws(devices))]
    sums = [between(own, parted(own, most)) for own in drawn]
    return float(np.mean(sums) - CLEARLY * np.std(sums, ddof=1))


def _draws(devices: int) -> int:
    return max(DRAWS // 4, min(DRAWS, 50 * DRAWS // devices))


def _independent(bits: np.random.Philox, devices: int, numbers: int) -> Numbers:
    """Draw products of independent devices with a spread of one, but for each with itself."""
    words = bits.random_raw(-(-devices * numbers // 64)).astype("<u8")
    signs = 2.0 * np.unpackbits(words.view(np.uint8), count=devices * numbers).reshape(devices, numbers) - 1.0
    return signs @ signs.T / numbers**0.5


def of_one(products: Numbers, away: Places, freedom: float) -> float:
    """Bound the sum of one parting of independent devices."""
    squares = np.diag(products)
    return -CLEARLY * float(squares[away].sum() * squares[~away].sum() / freedom) ** 0.5


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


AGREEING = Rule(shortened, shortens_as_compared=True, judge=opposed)
