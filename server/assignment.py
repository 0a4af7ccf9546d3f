"""Which units the clients of a round train: pure functions from numbers to slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from edge_client.chain import Chain, cost, cut_for
from edge_client.errors import BundleError
from edge_client.manifest import Manifest
from edge_client.protocol import Training

Assignment = Literal["cyclic", "memory", "all"]
ASSIGNMENTS: tuple[Assignment, ...] = get_args(Assignment)


@dataclass(frozen=True)
class Slot:
    """One client's place in a round."""

    number: int
    units: tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """How a device can take a slot."""

    runtime: str
    cut: int
    batch: int
    needs: int
    """Bytes."""


def slots(assignment: Assignment, units: int, clients: int, places: int) -> list[Slot]:
    """The places of a round for `clients` clients; places beyond them repeat the first clients' units."""
    groups = _GROUPS[assignment](units, clients)
    return [Slot(number, groups[number % len(groups)]) for number in range(places)]


def cyclic(units: int, clients: int) -> list[tuple[int, ...]]:
    """The paper's: unit i goes to client i mod M; with more clients than units, client j takes unit j mod L."""
    if units >= clients:
        return [tuple(range(client, units, clients)) for client in range(clients)]
    return [(client % units,) if units else () for client in range(clients)]


def contiguous(units: int, clients: int) -> list[tuple[int, ...]]:
    """Neighbours stay together: later clients have later cuts, and so need less memory."""
    if units < clients:
        return cyclic(units, clients)
    edges = [units * client // clients for client in range(clients + 1)]
    return [tuple(range(first, last)) for first, last in pairwise(edges)]


def everything(units: int, clients: int) -> list[tuple[int, ...]]:
    return [tuple(range(units))] * clients


_GROUPS = {"cyclic": cyclic, "memory": contiguous, "all": everything}


def fit(manifest: Manifest, slot: Slot, training: Training, runtimes: Sequence[str], memory: int | None) -> Fit | None:
    """The device's first runtime and the largest batch with which it can hold a slot; None where it cannot.

    A smaller batch than the job's is run several times for each step.
    """
    cut = cut_for(manifest, slot.units)
    batches = sorted((b for b, t in manifest.shapes if t == training.length and b <= training.batch), reverse=True)
    for batch in batches:
        for runtime in runtimes:
            needs = bytes_needed(manifest, runtime, training, cut, batch)
            if needs is not None and (memory is None or needs <= memory):
                return Fit(runtime, cut, batch, needs)
    return None


def bytes_needed(manifest: Manifest, runtime: str, training: Training, cut: int, batch: int) -> int | None:
    """What a step of this kind takes on this runtime, loaded weights included; None where it lacks programs."""
    try:
        directions = training.directions if training.estimator == "forward" else manifest.directions[0]
        chain = Chain(manifest, runtime, batch, training.length, directions)
        match training.estimator:
            case "forward":
                programs = [*chain.prefix(cut), *chain.suffix(cut, scalar=training.head != "exact")]
            case "central":
                programs = chain.forward()
            case "exact":
                programs = [*chain.prefix(chain.head)]
                programs += [chain.program(i, "vjp") for i in range(cut, chain.head + 1)]
    except (BundleError, IndexError):
        return None
    total = cost(programs)
    return total.load_bytes + total.peak_bytes


def choose(
    assignment: Assignment,
    free: Sequence[Slot],
    manifest: Manifest,
    training: Training,
    runtimes: Sequence[str],
    memory: int | None,
) -> tuple[Slot, Fit] | None:
    """A free slot for a device: the first it can hold; by memory, the most demanding it can hold at full batch."""
    fits = [(slot, found) for slot in free if (found := fit(manifest, slot, training, runtimes, memory))]
    if not fits:
        return None
    if assignment == "memory":
        return max(fits, key=lambda pair: (pair[1].batch, pair[1].needs, -pair[0].number))
    return fits[0]
