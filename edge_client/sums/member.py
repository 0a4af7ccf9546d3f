"""A device's part in a sum: what it sends at each stage, and what it refuses to be told.

Nothing here waits or travels. What was said is kept before it is sent, and said again as it was: a server that shows
this device one thing and later another, of the same round, is refused.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_client import keys
from edge_client.errors import TrainingError

from .fixed import FEWEST, HEAD, TOLD, UNITS, Parts
from .messages import (
    CARD,
    Card,
    Peer,
    Roster,
    Sharers,
    Survivors,
    places_in,
    signed_card,
    signed_vow,
)
from .shamir import SHARE, WIDE, drawn, split, threshold
from .streams import KEY, Lock, mask_seed, public, stream


@dataclass(frozen=True)
class About:
    """Which sum, and this device's place in it."""

    job: str
    round: int
    place: int
    units: tuple[int, ...]
    least: int


@dataclass(frozen=True)
class Kept:
    """What a device has drawn and been told; bytes in base64."""

    lock: str = field(default_factory=lambda: _text(os.urandom(KEY)))
    mask: str = field(default_factory=lambda: _text(os.urandom(KEY)))
    seed: str = field(default_factory=lambda: _text(os.urandom(KEY)))
    """Of its own mask."""
    roster: str = ""
    sharers: str = ""
    survivors: str = ""


class Parted(Protocol):
    """Gives the parts of a sum of so many devices, where examples count up to a cap."""

    def __call__(self, count: int, cap: int, /) -> Parts: ...


class Member:
    """One device in one sum.

    Args:
        about: the sum.
        key: the device's own secret key, which signs.
        kept: what it has drawn and was told.
        keep: writes that down; nothing is said before.
    """

    def __init__(self, about: About, key: str, kept: Kept, keep: Callable[[Kept], object]) -> None:
        if about.least < FEWEST:
            raise _lying(f"it would open sums of {about.least} devices; {FEWEST} is the least")
        self.about = about
        self.kept = kept
        self._key = key
        self._keep = keep
        self._lock, self._mask, self._seed = (_bytes(one) for one in (kept.lock, kept.mask, kept.seed))
        self._locks: dict[int, Lock] = {}

    # --- what it says ---

    def card(self) -> bytes:
        self._keep(self.kept)
        lock, mask = public(self._lock), public(self._mask)
        about = self.about
        text = signed_card(about.job, about.round, about.place, about.units, lock, mask)
        return lock + mask + keys.sign(self._key, text)

    def shares(self, told: bytes) -> bytes:
        """Of both secrets, sealed for each team-mate that cannot draw its own."""
        self._check_roster(Roster.decoded(told, self._own))
        self._once("roster", told)
        senders = self._mates[self._needed - 1 :]
        return b"".join(self._lock_with(mate).seal(self._shares[mate.place + 1]) for mate in senders)

    def update(self, told: bytes, parts: Parted) -> bytes:
        """What it adds, masked."""
        sharers = Sharers.decoded(told)
        there = places_in(sharers.places)
        self._check_sharers(there, sharers)
        self._once("sharers", told)
        roster = self.roster
        tags = [self._lock_with(mate).tag(sharers.places, own=True) for mate in self._mates if mate.place in there]
        return b"".join(tags) + joined(self._masked(parts(roster.count, roster.cap), there))

    def vow(self, told: bytes) -> bytes | None:
        """A witness signs who is in the sum; others have nothing to say, and are told later."""
        if self._own not in self.roster.witnesses:
            return None
        survivors = self._heard(told)
        return keys.sign(self._key, signed_vow(self.context, self._sharers.places, survivors.places))

    def opening(self, told: bytes) -> bytes:
        """Of each team-mate one share: of its own mask where it is in the sum, of its key where it is not."""
        survivors = self._heard(told)
        self._check_vows(survivors)
        inside = places_in(survivors.places)
        shares = dict(self._received())
        return b"".join(shares[place][SHARE * (place in inside) :][:SHARE] for place in sorted(shares))

    # --- what it knows ---

    @cached_property
    def roster(self) -> Roster:
        """Asked for once there is one."""
        return Roster.decoded(_bytes(self.kept.roster), self._own)

    @cached_property
    def context(self) -> bytes:
        """What all devices of the sum agree on, or they cannot read each other."""
        about, roster = self.about, self.roster
        return context_of(about.job, about.round, roster)

    @cached_property
    def _own(self) -> bytes:
        return keys.decoded(keys.public_of(self._key), KEY) or b""

    @property
    def _sharers(self) -> Sharers:
        return Sharers.decoded(_bytes(self.kept.sharers))

    @cached_property
    def _mates(self) -> list[Peer]:
        return sorted((peer for peer in self.roster.peers if peer.is_mate), key=lambda peer: peer.place)

    @property
    def _points(self) -> list[int]:
        """Of the team-mates and this device, as shares have them."""
        return sorted([self.about.place + 1, *(mate.place + 1 for mate in self._mates)])

    @property
    def _needed(self) -> int:
        """Shares that give a secret of this device back: all but one are drawn, those of its first team-mates."""
        return threshold(len(self._points))

    @cached_property
    def _shares(self) -> dict[int, bytes]:
        """Of its mask key and of its seed, by points."""
        points = self._points
        common = {mate.place + 1: _drawn(self._lock_with(mate), own=True) for mate in self._mates[: self._needed - 1]}
        of_mask = split(self._mask, points, {point: both[:SHARE] for point, both in common.items()})
        of_seed = split(self._seed, points, {point: both[SHARE:] for point, both in common.items()})
        return {point: one + other for point, one, other in zip(points, of_mask, of_seed, strict=True)}

    def _lock_with(self, mate: Peer) -> Lock:
        if mate.place not in self._locks:
            self._locks[mate.place] = Lock.between(self._lock, Card.of(mate.card).lock, self.context)
        return self._locks[mate.place]

    def _received(self) -> Iterator[tuple[int, bytes]]:
        """Shares of both secrets of each team-mate that made some, and of its own, by places."""
        yield self.about.place, self._shares[self.about.place + 1]
        sharers = self._sharers
        there, senders, sealed = places_in(sharers.places), places_in(sharers.senders), iter(sharers.sealed)
        for number, mate in enumerate(self._mates):
            if mate.place in there:
                lock = self._lock_with(mate)
                plain = lock.open(next(sealed)) if number in senders else _drawn(lock, own=False)
                if plain is None:
                    raise _lying(f"the shares of place {mate.place} cannot be read")
                yield mate.place, plain

    def _masked(self, parts: Parts, there: frozenset[int]) -> Parts:
        add_stream(parts, self._seed, parts, 1)
        mask, context = public(self._mask), self.context
        for peer in self.roster.peers:
            if peer.place in there:
                other = Card.of(peer.card).mask
                both = parts if peer.is_mate else [part for part in parts if part < UNITS]
                add_stream(parts, mask_seed(self._mask, other, context), both, 1 if mask < other else -1)
        return parts

    # --- what it refuses ---

    def _once(self, name: str, told: bytes) -> None:
        known, text = getattr(self.kept, name), _text(told)
        if known and known != text:
            raise _lying(f"it told another {name} of the same round before")
        if not known:
            self.kept = replace(self.kept, **{name: text})
            self._keep(self.kept)

    def _check_roster(self, roster: Roster) -> None:
        if roster.least != self.about.least:
            raise _lying(f"it would open sums of {roster.least} devices, where its task said {self.about.least}")
        cards = [Card.of(peer.card) for peer in roster.peers]
        seen = [public(self._lock), public(self._mask), *(key for card in cards for key in card[:2])]
        identities = [self._own, *(peer.identity for peer in roster.peers)]
        places = [self.about.place, *(peer.place for peer in roster.peers)]
        for each in (seen, identities, places, roster.witnesses):
            if len(set(each)) != len(each):
                raise _lying("a key or place stands for two devices")
        if not roster.cap or roster.count < len(places) or not roster.witnesses:
            raise _lying("its roster does not fit the devices in it")
        for peer, card in zip(roster.peers, cards, strict=True):
            self._check_card(peer, card)
        self._check_enough({peer.place for peer in roster.peers}, roster, "take part")

    def _check_card(self, peer: Peer, card: Card) -> None:
        units = self.about.units if peer.is_mate else peer.units
        text = signed_card(self.about.job, self.about.round, peer.place, units, card.lock, card.mask)
        if len(peer.card) != CARD or not keys.verify(keys.encoded(peer.identity), text, card.signature):
            raise _lying(f"the keys of place {peer.place} are not signed by its device")

    def _check_sharers(self, there: frozenset[int], sharers: Sharers) -> None:
        roster = self.roster
        mates = {number for number, mate in enumerate(self._mates) if mate.place in there}
        senders = places_in(sharers.senders)
        fits = senders <= mates and len(senders) == len(sharers.sealed)
        if self.about.place not in there or len(there) > roster.count or not fits:
            raise _lying("whose shares are there does not fit the roster")
        self._check_enough(there, roster, "shared")

    def _heard(self, told: bytes) -> Survivors:
        """Who is in the sum, checked; a witness that heard what team-mates say is told the same without it."""
        survivors, sharers = Survivors.decoded(told), self._sharers
        inside, there = places_in(survivors.places), places_in(sharers.places)
        if self.about.place not in inside or inside - there:
            raise _lying("who is in the sum does not fit whose shares are there")
        if survivors.tags or not self.kept.survivors:
            self._check_tags(survivors, [mate for mate in self._mates if mate.place in inside])
        self._check_enough(inside, self.roster, "are in the sum")
        self._once("survivors", survivors.places)
        return survivors

    def _check_tags(self, survivors: Survivors, mates: Sequence[Peer]) -> None:
        if len(survivors.tags) != len(mates):
            raise _lying("what team-mates said is missing")
        for mate, tag in zip(mates, survivors.tags, strict=True):
            if self._lock_with(mate).tag(self._sharers.places, own=False) != tag:
                raise _lying(f"place {mate.place} was told of other shares")

    def _check_enough(self, places: frozenset[int] | set[int], roster: Roster, what: str) -> None:
        """Of the team, with this device: they hold the same units, and all of them the head."""
        team = 1 + sum(peer.is_mate and peer.place in places for peer in roster.peers)
        if team < roster.least:
            raise _lying(f"{team} of this device's team {what}; a sum is of {roster.least} at least")

    def _check_vows(self, survivors: Survivors) -> None:
        witnesses = self.roster.witnesses
        text = signed_vow(self.context, self._sharers.places, survivors.places)
        numbers = {number for number, _ in survivors.vows}
        valid = all(
            number < len(witnesses) and keys.verify(keys.encoded(witnesses[number]), text, vow)
            for number, vow in survivors.vows
        )
        if not valid or len(numbers) != len(survivors.vows) or 2 * len(numbers) <= len(witnesses):
            raise _lying(f"{len(numbers)} of {len(witnesses)} witnesses signed this sum, more than half must have")


def _drawn(lock: Lock, *, own: bool) -> bytes:
    """Shares of both secrets that this end's device, or the other, need not send."""
    wide = lock.drawn(2 * WIDE, own=own)
    return drawn(wide[:WIDE]) + drawn(wide[WIDE:])


def context_of(job: str, number: int, roster: Roster) -> bytes:
    head = f"spry sums 1\n{job}\n{number}\n{roster.count} {roster.least} {roster.cap}\n".encode()
    return hashlib.sha256(head + b"".join(roster.witnesses)).digest()


# --- parts -----------------------------------------------------------------------------------------------------------


def add_stream(parts: Parts, seed: bytes, which: Sequence[int] | Mapping[int, Any], sign: int) -> None:
    """A seed's masks, added to parts or taken from them."""
    for part in which:
        values = parts[part]
        mask = stream(seed, part, values.size, values.dtype.type)
        if sign > 0:
            np.add(values, mask, out=values)
        else:
            np.subtract(values, mask, out=values)


def joined(parts: Parts) -> bytes:
    """Parts as they travel: units, the head, what reports say."""
    return b"".join(_little(parts[part]).tobytes() for part in in_order(parts))


def _little(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype("<u8" if values.itemsize == 8 else "<u4")


def in_order(parts: Sequence[int] | Mapping[int, Any]) -> list[int]:
    return [*sorted(part for part in parts if part >= UNITS), HEAD, TOLD]


def parted(data: bytes, sizes: Mapping[int, int]) -> Parts:
    """The inverse of `joined`, where these are the parts' numbers; all of the data."""
    parts: dict[int, NDArray[Any]] = {}
    at = 0
    for part in in_order(sizes):
        kind = "<u8" if part == TOLD else "<u4"
        parts[part] = np.frombuffer(data, kind, sizes[part], at).astype(kind[1:])
        at += parts[part].nbytes
    return parts


def joined_size(sizes: Mapping[int, int]) -> int:
    return sum(size * (8 if part == TOLD else 4) for part, size in sizes.items())


def _lying(why: str) -> TrainingError:
    return TrainingError(f"nothing more is sent for this sum: {why}; ask who runs the server")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
