"""Decide who shares masks with whom in a sum, by pure functions of the cards that arrived.

Devices with the same units are a team. Team-mates form a ring, in an order that nobody chooses (by the hash of
their cards), and each shares masks and secrets with its neighbours there; a small team is one neighbourhood. Masks of
the head and of reports' numbers also go to a few devices of other teams, so that only the sum of all is seen.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edge_client.secagg.member import context_of
from edge_client.secagg.messages import Peer, Roster
from edge_client.secagg.quorum import quorum, witnesses_of
from edge_client.secagg.shamir import threshold

RING = 6
"""Neighbours on each side, of the same team."""
WIDER, MANY = 8, 128
"""The same in a team of more: of many neighbourhoods it is likelier that one loses too many."""
ACROSS = 2
"""Neighbours on each side among all devices."""


@dataclass(frozen=True)
class Entrant:
    """A device that wants to be in a sum."""

    place: int
    units: tuple[int, ...]
    identity: bytes
    card: bytes


@dataclass(frozen=True)
class Arrangement:
    """The members of a sum, and what each has to know of the others."""

    entrants: Mapping[int, Entrant]
    mates: Mapping[int, Sequence[int]]
    """The slots that hold shares of each slot's secrets, in their order."""
    others: Mapping[int, Sequence[int]]
    """The peers of other teams."""
    witnesses: Sequence[int]
    least: int
    cap: int
    terms: bytes = b""
    """The terms of the noise that each adds, where the sum is private."""

    def roster(self, place: int) -> Roster:
        mates = [self._peer(mate, is_mate=True) for mate in self.mates[place]]
        peers = [*mates, *(self._peer(other, is_mate=False) for other in self.others[place])]
        witnesses = tuple(self.entrants[one].identity for one in self.witnesses)
        return Roster(len(self.entrants), self.least, self.cap, witnesses, tuple(peers))

    def _peer(self, place: int, *, is_mate: bool) -> Peer:
        entrant = self.entrants[place]
        return Peer(place, is_mate, entrant.identity, entrant.card, () if is_mate else entrant.units)

    def context(self, job: str, number: int) -> bytes:
        return context_of(job, number, self.roster(self.witnesses[0]), self.terms)

    def team(self, place: int) -> list[int]:
        """Return all slots that hold the same units."""
        units = self.entrants[place].units
        return [other for other, entrant in self.entrants.items() if entrant.units == units]

    @property
    def quorum(self) -> int:
        """Witnesses that must have signed."""
        return quorum(len(self.witnesses))

    def needed(self, place: int) -> int:
        """Shares that give a secret of a place back."""
        return threshold(1 + len(self.mates[place]), self.least)

    def receivers(self, place: int) -> Sequence[int]:
        """List the places that one deals shares to, in their order; those of its other team-mates are pads."""
        return self.mates[place][self.needed(place) - 1 :]

    def peers(self, place: int) -> list[int]:
        """Return a slot's peers in the order of tags."""
        return [*self.mates[place], *self.others[place]]


def arranged(entrants: Iterable[Entrant], least: int, cap: int, terms: bytes = b"") -> Arrangement:
    """Arrange entrants whose teams are large enough (`teams`)."""
    known = {entrant.place: entrant for entrant in sorted(entrants, key=lambda one: one.place)}
    order = sorted(known, key=lambda place: hashlib.sha256(known[place].card).digest())
    mates: dict[int, list[int]] = {}
    for team in teams(known.values()).values():
        inside = set(team)
        half = max(RING if len(team) <= MANY else WIDER, least)
        mates |= _ring([place for place in order if place in inside], half)
    around = _ring(order, ACROSS)
    others = {place: [other for other in around[place] if known[other].units != known[place].units] for place in known}
    return Arrangement(known, mates, others, order[: witnesses_of(len(order))], least, cap, terms)


def teams(entrants: Iterable[Entrant]) -> dict[tuple[int, ...], list[int]]:
    """Places by the units that they hold."""
    by_units: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for entrant in entrants:
        by_units[entrant.units].append(entrant.place)
    return dict(by_units)


def _ring(order: Sequence[int], half: int) -> dict[int, list[int]]:
    """List each member's neighbours, up to `half` places before and after it, sorted."""
    size = len(order)
    steps = [step for step in range(-half, half + 1) if step]
    return {place: sorted({order[(at + step) % size] for step in steps} - {place}) for at, place in enumerate(order)}
