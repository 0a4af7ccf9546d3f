"""The sum of masked parts, once enough devices have opened it: pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from edge_client.secagg.fixed import HEAD, TOLD, UNITS, Parts
from edge_client.secagg.member import add_stream
from edge_client.secagg.messages import DEALT
from edge_client.secagg.shamir import SHARE, joined, more
from edge_client.secagg.streams import mask_seed, public
from server.secagg.arrangement import Arrangement

Shares = dict[int, dict[int, bytes]]
"""The shares of each slot's secrets by their points."""


class Unopened(Exception):
    """A sum cannot be opened, for this reason."""


class Total:
    """The sum of masked parts, taken in one after the other."""

    def __init__(self) -> None:
        self.parts: Parts = {}

    def add(self, parts: Parts) -> None:
        for part, values in parts.items():
            if part in self.parts:
                np.add(self.parts[part], values, out=self.parts[part])
            else:
                self.parts[part] = values.copy()


def shares_in(
    arrangement: Arrangement, dealt: Mapping[int, bytes], survivors: Collection[int], openings: Mapping[int, bytes]
) -> Shares:
    """Sort what devices opened by whose secret it is of; `dealt` is what each dealt out."""
    shares: Shares = defaultdict(dict)
    for place, opening in openings.items():
        about = sorted({place, *(mate for mate in arrangement.mates[place] if mate in dealt)})
        for at, other in enumerate(about):
            opened = opening[SHARE * at : SHARE * (at + 1)]
            receivers = arrangement.receivers(other)
            if place in receivers:  # it told its pad
                both = dealt[other][DEALT * receivers.index(place) :]
                opened = more(both[SHARE * (other in survivors) :][:SHARE], opened)
            shares[other][place + 1] = opened
    return shares


def opening_size(arrangement: Arrangement, sharers: Collection[int], place: int) -> int:
    return SHARE * (1 + sum(mate in sharers for mate in arrangement.mates[place]))


def is_enough(arrangement: Arrangement, sharers: Collection[int], speakers: Collection[int]) -> bool:
    """Tell whether every secret can be reconstructed from the openings of these."""
    there = set(speakers)
    return all(
        len(there.intersection((place, *arrangement.mates[place]))) >= arrangement.needed(place) for place in sharers
    )


def unmask(
    total: Parts,
    arrangement: Arrangement,
    context: bytes,
    dealt: Mapping[int, bytes],
    survivors: Collection[int],
    openings: Mapping[int, bytes],
) -> None:
    """Take all masks off the sum of the survivors' parts."""
    shares = shares_in(arrangement, dealt, survivors, openings)
    for place in survivors:
        own = [TOLD, HEAD, *(UNITS + unit for unit in arrangement.entrants[place].units)]
        add_stream(total, _secret(arrangement, shares, place), own, -1)
    for place in set(dealt) - set(survivors):
        _forget(total, arrangement, context, survivors, place, _secret(arrangement, shares, place))


def _forget(
    total: Parts, arrangement: Arrangement, context: bytes, survivors: Collection[int], gone: int, key: bytes
) -> None:
    """Take off the masks that survivors share with one that is not in the sum."""
    mask = arrangement.entrants[gone].card
    if public(key) != mask:
        raise Unopened(f"the shares of place {gone} are of another key: a device is lying or broken")
    for place, parts in _shared(arrangement, gone):
        if place in survivors:
            other = arrangement.entrants[place].card
            add_stream(total, mask_seed(key, other, context), parts, -1 if other < mask else 1)


def _shared(arrangement: Arrangement, place: int) -> Iterator[tuple[int, list[int]]]:
    both = [TOLD, HEAD]
    of_team = [*both, *(UNITS + unit for unit in arrangement.entrants[place].units)]
    yield from ((mate, of_team) for mate in arrangement.mates[place])
    yield from ((other, both) for other in arrangement.others[place])


def _secret(arrangement: Arrangement, shares: Shares, place: int) -> bytes:
    known, needed = shares.get(place, {}), arrangement.needed(place)
    if len(known) < needed:
        raise Unopened(f"{len(known)} devices opened what belongs to place {place}, {needed} are needed")
    return joined({point: known[point] for point in sorted(known)[:needed]})
