"""Combine a round's changes by a rule, unit by unit over its holders, and name those that are far from the others.

All updates of a round are held at once, where the plain mean holds one sum. Whoever goes far beyond the others in half
of its units is left out of all: malicious devices whose data say little would else go unseen in some. Two holders or
one cannot outvote a malicious device: their changes are shortened to the unit's usual size, by the sizes of earlier
holders, which are kept in the server's state. The first holder of a unit is believed. A unit whose holders are all left
out keeps its value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.wire.scalars import shaped
from server.aggregation.rule import (
    FAR,
    FEWEST,
    Numbers,
    Rule,
    mean_within,
    middle,
    no_longer,
    sizes_of,
    standard_errors,
    weighted_mean,
)

WEIGHT_BOUND = 1.0
"""The most that a holder's examples count, over the median of the unit's holders: devices report them themselves."""
KEPT_SIZES = 16
"""The number of a unit's newest holders whose sizes are kept."""
AGAINST = -0.5
"""The cosine with the combined change below which a holder is reported to go against the others."""
FAR_PARTS = 0.5
"""The share of its parts in which a holder goes far to be left out of all."""
HEAD = "head"
MOST_PULL = 2.0
"""The most that a head's change is along the features' mean, over the median one."""


class Heads(NamedTuple):
    """The changes of the task layer in numbers that can be compared."""

    compared: Numbers
    """The changes about the features' mean, in units of their spread: [updates, numbers]."""
    pulls: Numbers
    """The rest, in the layer's own numbers: how much likelier it makes each class, whatever a text says."""

    def of(self, updates: Sequence[int]) -> Heads:
        """Take some of the updates."""
        return Heads(self.compared[updates], self.pulls[updates])


class Odd(NamedTuple):
    """A holder's change that is far from the others'."""

    part: str
    times: float
    """The length of the change over the usual one."""
    cosine: float
    """The cosine with the combined change."""


class Combined(NamedTuple):
    """The combined change of a unit's holders."""

    change: Weights
    errors: Weights
    """The change's standard errors."""
    sizes: Weights
    """The lengths of the changes of each unit's newest holders."""
    odd: Mapping[int, Sequence[Odd]]
    """The parts in which holders are far from the others, by holder."""


def combined(
    rule: Rule,
    start: Weights,
    usual: Weights,
    updates: Sequence[Mapping[str, Array]],
    weights: Sequence[Mapping[str, float]],
    manifest: Manifest,
    heads: Heads | None = None,
    agreeing: frozenset[int] = frozenset(),
) -> Combined:
    """Combine updates, each with a weight for each of its parameters, into one change.

    Where features of the task layer are measured `heads` are its changes in comparable form: as they stand those of a
    device with other shares of the classes are several times as long, and go against the others. To shorten them whole
    would take what its texts say from the device that has a class which others hardly have. Updates that are judged to
    be `agreeing` are left out of nothing for going far: they are shortened.
    """
    parts = [_holders(part, parameters, start, usual, updates, weights) for part, parameters in _parts(manifest)]
    parts = [part.by(heads) if part.name == HEAD else part for part in parts]
    out = _far(parts, len(updates)) - agreeing
    change: Weights = {}
    errors: Weights = {}
    known, odd = dict(usual), dict[int, list[Odd]]()
    for part in parts:
        if not part.holders:
            continue
        changes = _changes(start, updates, part)
        inside = np.array([holder not in out for holder in part.holders])
        changes = _shortened_heads(rule, changes, part)
        centre = _centre(rule, changes[inside], part, part.weights[inside])
        for place, found in _odd(part, changes, centre, inside):
            odd.setdefault(part.holders[place], []).append(found)
        known[part.name] = np.concatenate([part.before, part.sizes.astype(np.float32)])[-KEPT_SIZES:]
        if inside.any():
            change |= shaped(centre.astype(np.float32), part.parameters)
            error = standard_errors(changes[inside], part.weights[inside])
            errors |= shaped(error.astype(np.float32), part.parameters)
    return Combined(change, errors, known, odd)


class _Part(NamedTuple):
    """A unit, or the head, with its holders."""

    name: str
    parameters: Sequence[Parameter]
    holders: Sequence[int]
    weights: Numbers
    sizes: Numbers
    """The length of each holder's change."""
    before: Array
    """The lengths of earlier holders' changes."""
    heads: Heads | None = None
    """The holders' changes in other numbers, by which lengths are judged."""

    def by(self, heads: Heads | None) -> _Part:
        """Judge lengths by these numbers of all updates; of few holders there is nothing to compare."""
        if heads is None or len(self.holders) < FEWEST:
            return self
        return self._replace(heads=heads.of(self.holders))

    @property
    def compared(self) -> Numbers | None:
        return None if self.heads is None else self.heads.compared

    @property
    def times(self) -> Numbers:
        """The length of each holder's change over the usual one."""
        compared = self.compared
        sizes, usual = self.sizes, self.most
        if compared is not None:
            sizes = sizes_of(compared)
            usual = middle(sizes, self.weights)
        return sizes / usual if usual > 0 else np.where(sizes > 0, np.inf, 1.0)

    @property
    def most(self) -> float:
        """The usual length: of this round's holders, and of earlier ones too where these are few."""
        if len(self.sizes) >= FEWEST:
            return middle(self.sizes, self.weights)
        together = np.concatenate([self.before.astype(np.float64), self.sizes])
        return middle(together, np.ones(len(together)))

    @property
    def far(self) -> set[int]:
        """The holders that go too far, where enough are known to say so."""
        if len(self.sizes) + len(self.before) < FEWEST:
            return set()
        return {holder for holder, times in zip(self.holders, self.times, strict=True) if times > FAR}


def _holders(
    name: str,
    parameters: Sequence[Parameter],
    start: Weights,
    usual: Weights,
    updates: Sequence[Mapping[str, Array]],
    weights: Sequence[Mapping[str, float]],
) -> _Part:
    first = parameters[0].name
    holders = [number for number, own in enumerate(weights) if first in own]
    shares = np.array([weights[holder][first] for holder in holders], np.float64)
    part = _Part(name, parameters, holders, shares, np.zeros(0), usual.get(name, np.zeros(0, np.float32)))
    return part._replace(sizes=sizes_of(_changes(start, updates, part))) if holders else part


def _changes(start: Weights, updates: Sequence[Mapping[str, Array]], part: _Part) -> Numbers:
    flat = _flat(start, part.parameters)
    return np.stack([_flat(updates[holder], part.parameters) - flat for holder in part.holders])


def _far(parts: Sequence[_Part], updates: int) -> set[int]:
    """Find who is left out of all parts for going far in half of its own; of too many those that do so in most.

    They are fewer than half of the updates: an honest device that goes far now and then must not save malicious ones.
    """
    held = Counter(holder for part in parts for holder in part.holders)
    far = Counter(holder for part in parts if part.holders for holder in part.far)
    shares = {holder: count / held[holder] for holder, count in far.items()}
    for least in sorted({share for share in shares.values() if share >= FAR_PARTS}):
        out = {holder for holder, share in shares.items() if share >= least}
        if 2 * len(out) < updates:
            return out
    return set()


def _parts(manifest: Manifest) -> Iterator[tuple[str, Sequence[Parameter]]]:
    for part, parameters in [*((unit.name, unit.parameters) for unit in manifest.units), (HEAD, manifest.head)]:
        if parameters:
            yield part, parameters


def _flat(tensors: Mapping[str, Array], parameters: Iterable[Parameter]) -> Numbers:
    return np.concatenate([tensors[parameter.name].reshape(-1) for parameter in parameters]).astype(np.float64)


def _shortened_heads(rule: Rule, changes: Numbers, part: _Part) -> Numbers:
    """Shorten heads that are compared: what is compared to the median length, the rest to `MOST_PULL` times its own."""
    if part.heads is None:
        return changes
    if not rule.shortens_as_compared:
        return no_longer(changes, part.most)
    pulls = part.heads.pulls
    about = (changes - pulls) / np.maximum(part.times, 1.0)[:, None]
    return about + no_longer(pulls, MOST_PULL * middle(sizes_of(pulls), part.weights))


def _centre(rule: Rule, changes: Numbers, part: _Part, weights: Numbers) -> Numbers:
    if len(changes) < FEWEST:
        return mean_within(changes, weights, part.most)
    if part.heads is not None and rule.shortens_as_compared:
        return weighted_mean(changes, weights)
    return rule.centre(changes, weights)


def _odd(part: _Part, changes: Numbers, centre: Numbers, inside: NDArray[np.bool_]) -> Iterator[tuple[int, Odd]]:
    """Yield updates that go far, and among three holders or more those that go against the others."""
    if part.compared is not None and inside.any():
        changes, centre = part.compared, weighted_mean(part.compared[inside], part.weights[inside])
    lengths = np.maximum(sizes_of(changes) * float(np.sqrt(np.square(centre).sum())), np.finfo(np.float64).tiny)
    cosines = changes @ centre / lengths if len(changes) >= FEWEST else np.zeros(len(changes))
    for place, (times, cosine) in enumerate(zip(part.times, cosines, strict=True)):
        if times > FAR or cosine < AGAINST:
            yield place, Odd(part.name, float(times), float(cosine))


def in_words(odd: Sequence[Odd]) -> str:
    """Describe an odd device to an operator: the part where it is the oddest, and how many there are."""
    worst = max(odd, key=lambda one: (one.times, -one.cosine))
    said: list[str] = []
    if worst.times > FAR:
        said.append(f"{worst.times:.1f} times as far as is usual" if worst.times < np.inf else "far where others stay")
    if worst.cosine < AGAINST:
        said.append(f"against the others (cosine {worst.cosine:.2f})")
    more = f", and so do {len(odd) - 1} other parts" if len(odd) > 1 else ""
    return f"its {worst.part} goes {' and '.join(said)}{more}"


def against_in_words(what: str, cosine: float) -> str:
    """Describe a device that a rule leaves out whole to an operator, by what its updates contradict."""
    return f"its update goes against {what} (cosine {cosine:.2f}), and it is left out"
