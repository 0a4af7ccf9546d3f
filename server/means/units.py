"""A round's change, unit by unit over its holders, by a rule; and whose change is far from the others'.

All updates of a round are held at once, where the plain mean holds one sum. Two holders or one cannot outvote a liar:
their changes are held to what is usual in the unit, by the sizes of earlier holders, which are kept in the
server's state. The first holder of a unit is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.bundle.names import SIZES, within
from server.means.rule import FAR, FEWEST, Numbers, Rule, mean_within, middle, sizes_of

WEIGHT_BOUND = 1.0
"""Times the median of a unit's holders: what a device says of its examples is not believed beyond what others have."""
KEPT_SIZES = 16
"""Of a unit's newest holders."""
AGAINST = -0.5
"""The cosine with what the holders come to, below which it is told that one goes against them."""
HEAD = "head"


class Odd(NamedTuple):
    """A holder's change that is far from the others'."""

    part: str
    times: float
    """What is usual."""
    cosine: float
    """With what the holders come to."""


class Combined(NamedTuple):
    """What holders come to."""

    change: Weights
    sizes: Weights
    """What is usual, as the state keeps it."""
    odd: Mapping[int, Sequence[Odd]]
    """By holders."""


def combined(
    rule: Rule,
    start: Weights,
    state: Weights,
    updates: Sequence[Mapping[str, Array]],
    weights: Sequence[Mapping[str, float]],
    manifest: Manifest,
) -> Combined:
    """What updates, each with a weight for each of its parameters, make of the weights at the start."""
    change: Weights = {}
    known, odd = within(state, SIZES), dict[int, list[Odd]]()
    for part, parameters in _parts(manifest):
        name = parameters[0].name
        holders = [number for number, own in enumerate(weights) if name in own]
        if not holders:
            continue
        flat = _flat(start, parameters)
        changes = np.stack([_flat(updates[holder], parameters) - flat for holder in holders])
        shares = np.array([weights[holder][name] for holder in holders], np.float64)
        sizes = sizes_of(changes)
        before = known.get(part, np.zeros(0, np.float32))
        most = _usual(sizes, shares, before)
        centre = _centre(rule, changes, shares, most)
        for place, found in _odd(part, changes, sizes, centre, most):
            odd.setdefault(holders[place], []).append(found)
        known[part] = np.concatenate([before, sizes.astype(np.float32)])[-KEPT_SIZES:]
        change |= _shaped(centre, parameters)
    return Combined(change, {SIZES + part: sizes for part, sizes in known.items()}, odd)


def _parts(manifest: Manifest) -> Iterator[tuple[str, Sequence[Parameter]]]:
    for part, parameters in [*((unit.name, unit.parameters) for unit in manifest.units), (HEAD, manifest.head)]:
        if parameters:
            yield part, parameters


def _flat(tensors: Mapping[str, Array], parameters: Iterable[Parameter]) -> Numbers:
    return np.concatenate([tensors[parameter.name].reshape(-1) for parameter in parameters]).astype(np.float64)


def _shaped(flat: Numbers, parameters: Iterable[Parameter]) -> Weights:
    found: Weights = {}
    start = 0
    for parameter in parameters:
        found[parameter.name] = flat[start : start + parameter.size].reshape(parameter.shape).astype(np.float32)
        start += parameter.size
    return found


def _usual(sizes: Numbers, weights: Numbers, before: Array) -> float:
    """How long a change usually is: of this round's holders, and of earlier ones where these are few."""
    if len(sizes) >= FEWEST:
        return middle(sizes, weights)
    all_sizes = np.concatenate([before.astype(np.float64), sizes])
    return middle(all_sizes, np.ones(len(all_sizes)))


def _centre(rule: Rule, changes: Numbers, weights: Numbers, most: float) -> Numbers:
    if len(changes) < FEWEST:
        return mean_within(changes, weights, most)
    return rule.centre(changes, weights)


def _odd(part: str, changes: Numbers, sizes: Numbers, centre: Numbers, most: float) -> Iterator[tuple[int, Odd]]:
    """Those that go far, and of three or more those that go against the others."""
    length, tiny = float(np.sqrt(np.square(centre).sum())), np.finfo(np.float64).tiny
    for place, (change, size) in enumerate(zip(changes, sizes, strict=True)):
        cosine = float(change @ centre) / max(float(size) * length, tiny) if len(changes) >= FEWEST else 0.0
        times = float(size) / most if most > 0 else 1.0
        if times > FAR or cosine < AGAINST:
            yield place, Odd(part, times, cosine)


def in_words(found: Sequence[Odd]) -> str:
    """What an operator is told of a device: the part where it is the oddest, and how many there are."""
    worst = max(found, key=lambda one: (one.times, -one.cosine))
    said: list[str] = []
    if worst.times > FAR:
        said.append(f"{worst.times:.1f} times as far as is usual")
    if worst.cosine < AGAINST:
        said.append(f"against the others (cosine {worst.cosine:.2f})")
    more = f", and so do {len(found) - 1} other parts" if len(found) > 1 else ""
    return f"its {worst.part} goes {' and '.join(said)}{more}"
