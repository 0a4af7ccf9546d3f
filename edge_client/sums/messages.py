"""What travels for a sum: bytes in a fixed order, whole numbers little-endian, keys raw.

    PUT /v1/tasks/{task}/sum/card      keys of the round, signed by the device's own key: 128 bytes
    PUT /v1/tasks/{task}/sum/shares    a share of both secrets for each team-mate that draws none, sealed, in the order
                                       of their places: 80 bytes each
    PUT /v1/tasks/{task}/update        a tag for each team-mate (16 bytes each), then the masked parts
    PUT /v1/tasks/{task}/sum/vow       a witness's signature of who is in the sum: 64 bytes
    PUT /v1/tasks/{task}/sum/opening   a share for each team-mate and oneself, in the order of places: 32 bytes each
    GET /v1/tasks/{task}/sum           a stage, milliseconds to wait, and what the stage brings (`View`)

A set of places, or of numbers, is a map of bits, the lowest in the lowest bit of the first byte.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from edge_client.errors import BadAnswer

from .shamir import SHARE
from .streams import KEY, SEAL, TAG

Message = Literal["card", "shares", "vow", "opening"]
Stage = Literal["card", "shares", "update", "vow", "opening", "over"]
STAGES: tuple[Stage, ...] = ("card", "shares", "update", "vow", "opening", "over")
SIGNATURE = 64
CARD = 2 * KEY + SIGNATURE
SEALED = 2 * SHARE + SEAL
_HEAD = struct.Struct("<BI")
_ROSTER = struct.Struct("<HHIBHH")
_OWN, _NEW = 254, 255
"""In place of the number of a peer: a witness that is the reader itself, and one whose key follows."""


class Card(NamedTuple):
    """A device's keys of a round."""

    lock: bytes
    mask: bytes
    signature: bytes

    @classmethod
    def of(cls, data: bytes) -> Card:
        return cls(data[:KEY], data[KEY : 2 * KEY], data[2 * KEY :])


def signed_card(job: str, number: int, place: int, units: Sequence[int], lock: bytes, mask: bytes) -> bytes:
    """What stands under a card's signature."""
    return f"spry sums card\n{job}\n{number}\n{place}\n{' '.join(map(str, units))}\n".encode() + lock + mask


def signed_vow(context: bytes, sharers: bytes, survivors: bytes) -> bytes:
    """What a witness signs, once in a round."""
    return b"spry sums vow\n" + context + len(sharers).to_bytes(4, "little") + sharers + survivors


@dataclass(frozen=True)
class Peer:
    """A device that another shares masks with."""

    place: int
    is_mate: bool
    """Of the same team: it holds the same units, and shares of the other's secrets."""
    identity: bytes
    card: bytes
    units: tuple[int, ...] = ()
    """Of one that is of another team."""


@dataclass(frozen=True)
class Roster:
    """Who takes part, as far as a device has to know."""

    count: int
    """Devices of the sum."""
    least: int
    """Of whose parts a sum is opened."""
    cap: int
    """Examples that count at most."""
    witnesses: tuple[bytes, ...]
    """Their own public keys."""
    peers: tuple[Peer, ...]

    def encoded(self, own: bytes) -> bytes:
        """For the device with this public key: what it knows is not told again."""
        mates = sum(peer.is_mate for peer in self.peers)
        head = _ROSTER.pack(self.count, self.least, self.cap, len(self.witnesses), mates, len(self.peers) - mates)
        known = {peer.identity: bytes([number]) for number, peer in enumerate(self.peers[:_OWN])} | {own: bytes([_OWN])}
        witnesses = (known.get(key, bytes([_NEW]) + key) for key in self.witnesses)
        return head + b"".join(map(_peer, self.peers)) + b"".join(witnesses)

    @classmethod
    def decoded(cls, data: bytes, own: bytes) -> Roster:
        reader = Reader(data)
        count, least, cap, witnesses, mates, others = reader.unpack(_ROSTER)
        peers = tuple(_read_peer(reader, is_mate=number < mates) for number in range(mates + others))
        keys = tuple(_read_witness(reader, peers, own) for _ in range(witnesses))
        reader.end()
        return cls(count, least, cap, keys, peers)


def _peer(peer: Peer) -> bytes:
    units = b"" if peer.is_mate else struct.pack(f"<{1 + len(peer.units)}H", len(peer.units), *peer.units)
    return peer.place.to_bytes(2, "little") + peer.identity + peer.card + units


def _read_peer(reader: Reader, *, is_mate: bool) -> Peer:
    place, identity, card = int.from_bytes(reader.take(2), "little"), reader.take(KEY), reader.take(CARD)
    units = b"" if is_mate else reader.take(2 * int.from_bytes(reader.take(2), "little"))
    return Peer(place, is_mate, identity, card, struct.unpack(f"<{len(units) // 2}H", units))


def _read_witness(reader: Reader, peers: Sequence[Peer], own: bytes) -> bytes:
    number = reader.take(1)[0]
    if number == _NEW:
        return reader.take(KEY)
    if number != _OWN and number >= len(peers):
        raise BadAnswer("a sum's witness is nobody; server and device need the same version of spry")
    return own if number == _OWN else peers[number].identity


class Reader:
    """Bytes, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise BadAnswer("the server's part of a sum is cut off; server and device need the same version of spry")
        self._at += size
        return taken

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def set(self) -> bytes:
        return self.take(int.from_bytes(self.take(2), "little"))

    def end(self) -> None:
        if self._at != len(self._data):
            raise BadAnswer("the server's part of a sum is too long; server and device need the same version of spry")


# --- sets of places --------------------------------------------------------------------------------------------------


def set_of(places: Collection[int]) -> bytes:
    bits = sum(1 << place for place in places)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def places_in(bits: bytes) -> frozenset[int]:
    number = int.from_bytes(bits, "little")
    return frozenset(place for place in range(number.bit_length()) if number >> place & 1)


def with_length(bits: bytes) -> bytes:
    return len(bits).to_bytes(2, "little") + bits


# --- what a device is told -------------------------------------------------------------------------------------------


class View(NamedTuple):
    """Where a sum stands for one device."""

    stage: Stage
    wait: float
    """Seconds until another look is worth while."""
    body: bytes

    def encoded(self) -> bytes:
        return _HEAD.pack(STAGES.index(self.stage), round(1000 * self.wait)) + self.body

    @classmethod
    def decoded(cls, data: bytes) -> View:
        reader = Reader(data)
        stage, wait = reader.unpack(_HEAD)
        if stage >= len(STAGES):
            raise BadAnswer(f"the server is at stage {stage} of a sum, which this device does not know: upgrade spry")
        return cls(STAGES[stage], wait / 1000, data[_HEAD.size :])


class Sharers(NamedTuple):
    """Stage `update`: whose shares are there, and those sealed for this device, by the order of its team-mates."""

    places: bytes
    senders: bytes
    """Which of the team-mates sealed theirs, by their order in the roster; this device draws the others'."""
    sealed: tuple[bytes, ...]

    def encoded(self) -> bytes:
        return with_length(self.places) + with_length(self.senders) + b"".join(self.sealed)

    @classmethod
    def decoded(cls, data: bytes) -> Sharers:
        reader = Reader(data)
        places, senders = reader.set(), reader.set()
        return cls(places, senders, tuple(_pieces(data[4 + len(places) + len(senders) :], SEALED)))


class Survivors(NamedTuple):
    """Stages `vow` and `opening`: who is in the sum."""

    places: bytes
    tags: tuple[bytes, ...]
    """What team-mates in it say of whose shares were there; of those that have not heard it."""
    vows: tuple[tuple[int, bytes], ...] = ()
    """Witnesses' signatures, by the number of the witness."""

    def encoded(self) -> bytes:
        tags = len(self.tags).to_bytes(2, "little") + b"".join(self.tags)
        return with_length(self.places) + tags + b"".join(bytes([number]) + vow for number, vow in self.vows)

    @classmethod
    def decoded(cls, data: bytes) -> Survivors:
        reader = Reader(data)
        places = reader.set()
        count = int.from_bytes(reader.take(2), "little")
        tags = tuple(reader.take(TAG) for _ in range(count))
        rest = data[2 + len(places) + 2 + TAG * count :]
        vows = tuple((piece[0], piece[1:]) for piece in _pieces(rest, 1 + SIGNATURE))
        return cls(places, tags, vows)


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    reader = Reader(data)
    for _ in range(-(-len(data) // size)):
        yield reader.take(size)
