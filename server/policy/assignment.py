"""Decide which units the clients of a round train, by pure functions from numbers to slots."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

from edge_client.bundle.chain import Chain, bytes_of, cut_for, directions_at_once
from edge_client.bundle.manifest import Manifest
from edge_client.errors import BundleError
from edge_client.estimators.registry import kind_of
from edge_client.wire.protocol import Training
from server.policy.depths import Depth
from server.policy.passes import passes

Split = Literal["cyclic", "memory", "all"]


@dataclass(frozen=True)
class RoundSlot:
    """One client's slot in a round."""

    number: int
    units: tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """The way in which a device takes a slot."""

    runtime: str
    units: tuple[int, ...]
    """The slot's units, and those that cost nothing more."""
    cut: int
    batch: int
    needs: int
    """The memory in bytes."""
    training: Training
    """The job's settings, or those for a device like this."""


def slots(assignment: Split, units: int, clients: int, count: int, least: int = 1) -> list[RoundSlot]:
    """Return the slots of a round for `clients` clients, each with at least `least` units where there are as many.

    Slots beyond the clients repeat the first clients' units.
    """
    around = assignment != "memory"
    groups = [_with_neighbours(group, units, least, around=around) for group in _GROUPS[assignment](units, clients)]
    return [RoundSlot(number, groups[number % len(groups)]) for number in range(count)]


def cyclic(units: int, clients: int) -> list[tuple[int, ...]]:
    """Split units as the paper does: unit i to client i mod M; with more clients than units, client j takes j mod L."""
    if units >= clients:
        return [tuple(range(client, units, clients)) for client in range(clients)]
    return [(client % units,) if units else () for client in range(clients)]


def contiguous(units: int, clients: int) -> list[tuple[int, ...]]:
    """Keep neighbouring units together: later clients have later cuts, and so need less memory."""
    if units < clients:
        return cyclic(units, clients)
    edges = [units * client // clients for client in range(clients + 1)]
    return [tuple(range(first, last)) for first, last in pairwise(edges)]


def everything(units: int, clients: int) -> list[tuple[int, ...]]:
    """Give every unit to each client."""
    return [tuple(range(units))] * clients


def _with_neighbours(group: tuple[int, ...], units: int, least: int, *, around: bool) -> tuple[int, ...]:
    """Add the units that follow the group's last; after the very last the first ones, or those before the group."""
    last = max(group, default=0)
    before = range(last) if around else reversed(range(last))  # the first unit would be the earliest cut
    others = [unit for unit in (*range(last + 1, units), *before) if unit not in group]
    return tuple(sorted((*group, *others[: max(0, least - len(group))])))


_GROUPS = {"cyclic": cyclic, "memory": contiguous, "all": everything}


class Needs:
    """Compute what a job's slots ask of a device, once for each runtime, cut, batch and variant."""

    def __init__(self, manifest: Manifest, training: Training) -> None:
        self._manifest = manifest
        self._variants = kind_of(training).variants(training, manifest)
        self._known: dict[tuple[str, int, int, Training, bool], int | None] = {}
        shapes = (b for b, t in manifest.shapes if t == training.length and b <= training.batch)
        self._batches = sorted(shapes, reverse=True)

    @property
    def has_choice(self) -> bool:
        """True if steps may differ between devices."""
        return len(self._variants) > 1

    def fit(
        self,
        slot: RoundSlot,
        runtimes: Sequence[str],
        memory: int | None,
        most_passes: float | None = None,
        *,
        low_memory: bool = False,
        depth: Depth | None = None,
    ) -> Fit | None:
        """Return the best way in which a device can hold a slot, with its first runtime and the largest batch; or None.

        A smaller batch than the job's is run several times for each step. Where every way takes more forward passes
        than a device has time for, it is the one with the fewest. With `low_memory` it holds one program at a time.
        """
        variants = self._variants
        if depth is not None and self.has_choice:
            variants = [variant for variant in variants if variant.exact_blocks <= depth.blocks]
            slot = RoundSlot(slot.number, depth.directed(slot.units))
        fitted = (self._fit(variant, slot, runtimes, memory, low_memory=low_memory) for variant in variants)
        fits = (fit for fit in fitted if fit is not None)
        if most_passes is None:
            return next(fits, None)
        slow: list[Fit] = []
        for fit in fits:
            if self.passes(fit) <= most_passes:
                return fit
            slow.append(fit)
        return min(slow, key=self.passes, default=None)

    def limit(self, runtimes: Sequence[str], memory: int | None, *, low_memory: bool = False) -> int | None:
        """Return the number of last blocks through which a device can backpropagate; None if it can hold no step."""
        fit = self.fit(RoundSlot(0, ()), runtimes, memory, low_memory=low_memory)
        return None if fit is None else fit.training.exact_blocks

    def passes(self, fit: Fit) -> float:
        """Count the forward passes that a step takes."""
        return passes(kind_of(fit.training), fit.training, self._manifest, fit.units)

    def _fit(
        self, variant: Training, slot: RoundSlot, runtimes: Sequence[str], memory: int | None, *, low_memory: bool
    ) -> Fit | None:
        units = kind_of(variant).joined(self._manifest, variant, slot.units)
        cut = cut_for(self._manifest, units)
        for batch in self._batches:
            for runtime in runtimes:
                needs = self.bytes(runtime, cut, batch, variant, low_memory=low_memory)
                if needs is not None and (memory is None or needs <= memory):
                    return Fit(runtime, units, cut, batch, needs, variant)
        return None

    def bytes(self, runtime: str, cut: int, batch: int, variant: Training, *, low_memory: bool = False) -> int | None:
        """Compute the bytes that a step takes, loaded weights included; None where the runtime lacks programs."""
        key = runtime, cut, batch, variant, low_memory
        if key not in self._known:
            self._known[key] = self._bytes(runtime, cut, batch, variant, low_memory=low_memory)
        return self._known[key]

    def _bytes(self, runtime: str, cut: int, batch: int, variant: Training, *, low_memory: bool) -> int | None:
        try:
            kind = kind_of(variant)
            at_once = directions_at_once(self._manifest, variant.directions)
            directions = at_once if kind.along else self._manifest.directions[0]
            chain = Chain(self._manifest, runtime, batch, variant.length, directions)
            programs = kind.programs(chain, variant, cut)
        except (BundleError, IndexError):
            return None
        return bytes_of(programs, low_memory=low_memory)


def choose(
    assignment: Split,
    free: Sequence[RoundSlot],
    needs: Needs,
    runtimes: Sequence[str],
    memory: int | None,
    most_passes: float | None = None,
    *,
    low_memory: bool = False,
    depth: Depth | None = None,
) -> tuple[RoundSlot, Fit] | None:
    """Choose a free slot for a device: the first it can hold; by memory, the most demanding it can hold in full."""
    fit = partial(needs.fit, low_memory=low_memory, depth=depth)
    tried = ((slot, fit(slot, runtimes, memory, most_passes)) for slot in free)
    fits = ((slot, fit) for slot, fit in tried if fit is not None)
    if assignment == "memory":
        return max(fits, key=lambda pair: (pair[1].batch, pair[1].needs, -pair[0].number), default=None)
    return next(fits, None)


def seed_of(job_seed: int, number: int, slot: int) -> int:
    """Compute a client's seed: nobody stores it, and two clients of a job never share one. 63 bits, for databases."""
    digest = hashlib.sha256(f"{job_seed}/{number}/{slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
