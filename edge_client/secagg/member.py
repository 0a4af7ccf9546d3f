"""A device's part in a sum: its messages at each stage, and the answers that it refuses.

Nothing here waits or travels. A message is kept before it is sent, and sent again as it was: a server that shows
this device one thing and later another, of the same round, is refused.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_client import keys
from edge_client.errors import TrainingError

from .fixed import FEWEST, HEAD, TOLD, UNITS, Parts
from .locks import End, Lock
from .messages import Peer, Roster, Survivors, places_in, signed_vow
from .quorum import quorum, witnesses_of
from .shamir import less, split, threshold
from .streams import KEY, mask_seed, public, stream


@dataclass(frozen=True)
class About:
    """Which sum, and this device's place in it."""

    job: str
    round: int
    place: int
    units: tuple[int, ...]
    least: int
    terms: bytes = b""
    """The terms of the noise that is added in it (`noise.Share`); none without."""


@dataclass(frozen=True)
class Kept:
    """The state of a device in a secure sum: its secrets and what it received, bytes in base64."""

    mask: str = field(default_factory=lambda: _text(os.urandom(KEY)))
    seed: str = field(default_factory=lambda: _text(os.urandom(KEY)))
    """The seed of its own mask."""
    roster: str = ""
    sharers: str = ""
    survivors: str = ""
    terms: str = ""
    noise: str = field(default_factory=lambda: _text(os.urandom(KEY)))
    """The seed of its share of the noise; opened to nobody."""


class Parted(Protocol):
    """Gives the parts of a sum of so many devices, where examples count up to a cap."""

    def __call__(self, count: int, cap: int, /) -> Parts: ...


class Member:
    """One device in one sum.

    Args:
        about: the sum.
        key: the device's own secret key, which signs.
        kept: its secrets and what it received.
        keep: writes that down, before anything is sent.
    """

    def __init__(self, about: About, key: str, kept: Kept, keep: Callable[[Kept], object]) -> None:
        if about.least < FEWEST:
            raise _lying(f"it would open sums of {about.least} devices; {FEWEST} is the least")
        self.about = about
        self.kept = kept
        self._key = key
        self._keep = keep
        self._mask, self._seed = _bytes(kept.mask), _bytes(kept.seed)
        self._locks: dict[int, Lock] = {}

    # --- what it says ---

    def card(self) -> bytes:
        if self.about.terms or self.kept.terms:
            self._once("terms", self.about.terms)
        self._keep(self.kept)
        return public(self._mask)

    def shares(self, told: bytes) -> bytes:
        """Make shares of both secrets, less the pads of those who hold them; the first hold pads as they are."""
        self._check_roster(Roster.decoded(told, self._own))
        self._once("roster", told)
        dealt: list[bytes] = []
        for mate in self._mates[self._needed - 1 :]:
            pads = self._lock_with(mate).pads(own=True)
            dealt += [less(*both) for both in zip(self._shares[mate.place + 1], pads, strict=True)]
        return b"".join(dealt)

    def update(self, told: bytes, parts: Parted) -> bytes:
        """Mask what this device adds."""
        there = places_in(told)
        self._check_sharers(there)
        self._once("sharers", told)
        roster = self.roster
        tags = [self._lock_with(peer).tag(told, own=True) for peer in self.roster.peers if peer.place in there]
        return b"".join(tags) + joined(self._masked(parts(roster.count, roster.cap), there))

    def vow(self, told: bytes) -> bytes | None:
        """Sign who is in the sum, as a witness; None for others, who get the list later."""
        if self._own not in self.roster.witnesses:
            return None
        survivors = self._heard(told)
        return keys.sign(self._key, signed_vow(self.context, self._sharers, survivors.places))

    def opening(self, told: bytes) -> bytes:
        """Reveal one pad for each team-mate: of its own mask where it is in the sum, of its key where it is not."""
        survivors = self._heard(told)
        self._check_vows(survivors)
        inside = places_in(survivors.places)
        there = places_in(self._sharers)
        mates = [mate for mate in self._mates if mate.place in there]
        opened = {mate.place: self._lock_with(mate).pads(own=False)[mate.place in inside] for mate in mates}
        opened[self.about.place] = self._shares[self.about.place + 1][1]
        return b"".join(opened[place] for place in sorted(opened))

    # --- what it knows ---

    @property
    def noise(self) -> bytes:
        """Return the secret of its noise: the same whenever this sum's update is made again."""
        return _bytes(self.kept.noise)

    @cached_property
    def roster(self) -> Roster:
        """Asked for once there is one."""
        return Roster.decoded(_bytes(self.kept.roster), self._own)

    @cached_property
    def context(self) -> bytes:
        """Bind messages to what all devices of the sum agree on, or they cannot read each other."""
        about, roster = self.about, self.roster
        return context_of(about.job, about.round, roster, about.terms)

    @cached_property
    def _own(self) -> bytes:
        return keys.decoded(keys.public_of(self._key), KEY) or b""

    @property
    def _sharers(self) -> bytes:
        return _bytes(self.kept.sharers)

    @cached_property
    def _mates(self) -> list[Peer]:
        return [peer for peer in self.roster.peers if peer.is_mate]

    @property
    def _points(self) -> list[int]:
        """Number the team-mates and this device, as shares have them."""
        return sorted([self.about.place + 1, *(mate.place + 1 for mate in self._mates)])

    @property
    def _needed(self) -> int:
        """Shares that give a secret of this device back: all but one are pads, those of its first team-mates."""
        return threshold(len(self._points), self.about.least)

    @cached_property
    def _shares(self) -> dict[int, tuple[bytes, bytes]]:
        """Split the mask key and the seed into shares, by points."""
        points = self._points
        pads = {mate.place + 1: self._lock_with(mate).pads(own=True) for mate in self._mates[: self._needed - 1]}
        of_mask = split(self._mask, points, {point: both[0] for point, both in pads.items()})
        of_seed = split(self._seed, points, {point: both[1] for point, both in pads.items()})
        return dict(zip(points, zip(of_mask, of_seed, strict=True), strict=True))

    def _lock_with(self, peer: Peer) -> Lock:
        if peer.place not in self._locks:
            about = self.about
            here = End(self._own, public(self._mask), about.place, about.units)
            there = End(peer.identity, peer.mask, peer.place, about.units if peer.is_mate else peer.units)
            seed = keys.decoded(self._key, KEY) or b""
            self._locks[peer.place] = Lock.between(seed, self._mask, here, there, self.context)
        return self._locks[peer.place]

    def _masked(self, parts: Parts, there: frozenset[int]) -> Parts:
        add_stream(parts, self._seed, parts, 1)
        mask, context = public(self._mask), self.context
        for peer in self.roster.peers:
            if peer.place in there:
                both = parts if peer.is_mate else [part for part in parts if part < UNITS]
                add_stream(parts, mask_seed(self._mask, peer.mask, context), both, 1 if mask < peer.mask else -1)
        return parts

    # --- what it refuses ---

    def _once(self, name: str, told: bytes) -> None:
        known, text = getattr(self.kept, name), _text(told)
        if known and known != text:
            raise _lying(f"the server sent another {name} of the same round before")
        if not known:
            self.kept = replace(self.kept, **{name: text})
            self._keep(self.kept)

    def _check_roster(self, roster: Roster) -> None:
        if roster.least != self.about.least:
            raise _lying(f"it would open sums of {roster.least} devices, where its task named {self.about.least}")
        seen = [public(self._mask), *(peer.mask for peer in roster.peers)]
        identities = [self._own, *(peer.identity for peer in roster.peers)]
        places = [self.about.place, *(peer.place for peer in roster.peers)]
        for each in (seen, identities, places, roster.witnesses):
            if len(set(each)) != len(each):
                raise _lying("a key or slot belongs to two devices")
        if self.about.terms and roster.cap != 1:
            raise _lying(f"it would let a device weigh {roster.cap} times as much as another, in a private sum")
        if not roster.cap or roster.count < len(places) or len(roster.witnesses) != witnesses_of(roster.count):
            raise _lying("its roster does not fit the devices in it")
        self._check_enough({peer.place for peer in roster.peers}, roster, "take part")

    def _check_sharers(self, there: frozenset[int]) -> None:
        roster = self.roster
        if self.about.place not in there or len(there) > roster.count:
            raise _lying("the devices with shares are not those of the roster")
        self._check_enough(there, roster, "shared")

    def _heard(self, told: bytes) -> Survivors:
        """Check who is in the sum; a witness that got its team-mates' signatures gets the same list without them."""
        survivors = Survivors.decoded(told)
        inside, there = places_in(survivors.places), places_in(self._sharers)
        if self.about.place not in inside or inside - there:
            raise _lying("the devices in the sum are not those with shares")
        if survivors.tags or not self.kept.survivors:
            self._check_tags(survivors, [peer for peer in self.roster.peers if peer.place in inside])
        self._check_enough(inside, self.roster, "are in the sum")
        self._once("survivors", survivors.places)
        return survivors

    def _check_tags(self, survivors: Survivors, peers: Sequence[Peer]) -> None:
        if len(survivors.tags) != len(peers):
            raise _lying("messages of other devices are missing")
        for peer, tag in zip(peers, survivors.tags, strict=True):
            if self._lock_with(peer).tag(self._sharers, own=False) != tag:
                raise _lying(f"place {peer.place} got other keys or shares")

    def _check_enough(self, places: frozenset[int] | set[int], roster: Roster, what: str) -> None:
        """Refuse a team that is too small; its members hold the same units, and all of them the head."""
        team = 1 + sum(peer.is_mate and peer.place in places for peer in roster.peers)
        if team < roster.least:
            raise _lying(f"{team} of this device's team {what}; a sum needs at least {roster.least}")

    def _check_vows(self, survivors: Survivors) -> None:
        witnesses = self.roster.witnesses
        text = signed_vow(self.context, self._sharers, survivors.places)
        signed, needed = len(survivors.vows), quorum(len(witnesses))
        valid = all(
            number < len(witnesses) and keys.verify(keys.encoded(witnesses[number]), text, vow)
            for number, vow in survivors.vows
        )
        if not valid or signed < needed:
            raise _lying(f"{signed} of {len(witnesses)} witnesses signed this sum, {needed} must have")


def context_of(job: str, number: int, roster: Roster, terms: bytes = b"") -> bytes:
    head = f"spry sums 2\n{job}\n{number}\n{roster.count} {roster.least} {roster.cap}\n".encode()
    return hashlib.sha256(head + b"".join(roster.witnesses) + terms).digest()


# --- parts -----------------------------------------------------------------------------------------------------------


def add_stream(parts: Parts, seed: bytes, which: Sequence[int] | Mapping[int, Any], sign: int) -> None:
    """Add a seed's masks to parts, or take them off."""
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
    """Split joined parts again, where these are the parts' numbers; the inverse of `joined`."""
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
    return TrainingError(f"nothing more is sent for this sum: {why}; ask the server's operator")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
