"""Encode the messages of a sum: bytes in a fixed order, whole numbers little-endian, keys raw.

    PUT /v1/tasks/{task}/sum/card      the key of the round: 32 bytes
    PUT /v1/tasks/{task}/sum/shares    shares of both secrets less the pads of their holders, for all but the first
                                       team-mates, in the order of their places: 64 bytes each
    PUT /v1/tasks/{task}/update        a tag for each peer (16 bytes each), then the masked parts
    PUT /v1/tasks/{task}/sum/vow       a witness's signature of who is in the sum: 64 bytes
    PUT /v1/tasks/{task}/sum/opening   a pad for each team-mate, and a share for oneself, in the order of places: 32
                                       bytes each
    GET /v1/tasks/{task}/sum           a stage, milliseconds to wait, and what the stage brings (`View`): `Roster`, the
                                       places whose shares are there, or `Survivors`

A set of places, or of numbers, is a map of bits, the lowest in the lowest bit of the first byte.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from edge_client.errors import BadAnswer, TrainingError

from .shamir import SHARE
from .streams import KEY, TAG

Message = Literal["card", "shares", "vow", "opening"]
Stage = Literal["card", "shares", "update", "vow", "opening", "over"]
STAGES: tuple[Stage, ...] = ("card", "shares", "update", "vow", "opening", "over")
FORMAT = 1
"""The number of this form, which tasks name (`Sum.format`)."""
SIGNATURE = 64
CARD = KEY
DEALT = 2 * SHARE
_HEAD = struct.Struct("<BI")
_ROSTER = struct.Struct("<HHIBHH")
_OWN = 255
"""The number in place of a peer's of a witness that is the reader itself."""


def require_known(form: int) -> None:
    """Refuse a sum whose messages are of another form."""
    if form != FORMAT:
        raise TrainingError(f"the sum is of format {form}, this version of spry knows {FORMAT}: update spry here")


def signed_vow(context: bytes, sharers: bytes, survivors: bytes) -> bytes:
    """Build the text that a witness signs, once in a round."""
    return b"spry sums vow\n" + context + len(sharers).to_bytes(4, "little") + sharers + survivors


@dataclass(frozen=True)
class Peer:
    """A device that another shares masks with."""

    place: int
    is_mate: bool
    """True for the same team: it holds the same units, and shares of the other's secrets."""
    identity: bytes
    """The peer's own public key."""
    mask: bytes
    """The peer's key of the round."""
    units: tuple[int, ...] = ()
    """The units of a peer of another team."""


@dataclass(frozen=True)
class Roster:
    """The members of a sum, as far as a device has to know them."""

    count: int
    """Devices of the sum."""
    least: int
    """The fewest devices of whose parts a sum is opened."""
    cap: int
    """Examples that count at most."""
    witnesses: tuple[bytes, ...]
    """Their own public keys."""
    peers: tuple[Peer, ...]

    def encoded(self, own: bytes) -> bytes:
        """Encode the roster for the device with this public key, without what it knows."""
        mates = sum(peer.is_mate for peer in self.peers)
        sizes = len(self.witnesses), mates, len(self.peers) - mates
        head = _ROSTER.pack(self.count, self.least, self.cap, *sizes)
        known = {peer.identity: bytes([number]) for number, peer in enumerate(self.peers[:_OWN])} | {own: bytes([_OWN])}
        new = set_of([number for number, key in enumerate(self.witnesses) if key not in known])
        witnesses = (known.get(key, key) for key in self.witnesses)
        return head + b"".join(map(_peer, self.peers)) + with_length(new) + b"".join(witnesses)

    @classmethod
    def decoded(cls, data: bytes, own: bytes) -> Roster:
        reader = Reader(data)
        count, least, cap, witnesses, mates, others = reader.unpack(_ROSTER)
        peers = tuple(_read_peer(reader, is_mate=number < mates) for number in range(mates + others))
        new = places_in(reader.set())
        keys = tuple(
            reader.take(KEY) if number in new else _known_witness(reader, peers, own) for number in range(witnesses)
        )
        reader.end()
        return cls(count, least, cap, keys, peers)


def _peer(peer: Peer) -> bytes:
    units = b"" if peer.is_mate else struct.pack(f"<{1 + len(peer.units)}H", len(peer.units), *peer.units)
    return peer.place.to_bytes(2, "little") + peer.identity + peer.mask + units


def _read_peer(reader: Reader, *, is_mate: bool) -> Peer:
    place, identity, mask = int.from_bytes(reader.take(2), "little"), reader.take(KEY), reader.take(KEY)
    units = b"" if is_mate else reader.take(2 * int.from_bytes(reader.take(2), "little"))
    return Peer(place, is_mate, identity, mask, struct.unpack(f"<{len(units) // 2}H", units))


def _known_witness(reader: Reader, peers: Sequence[Peer], own: bytes) -> bytes:
    number = reader.take(1)[0]
    if number != _OWN and number >= len(peers):
        raise BadAnswer("a sum names a witness that does not exist; server and device need the same version of spry")
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


# --- answers to a device --------------------------------------------------------------------------------------------


class View(NamedTuple):
    """The state of a sum for one device."""

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


class Survivors(NamedTuple):
    """Stages `vow` and `opening`: who is in the sum."""

    places: bytes
    tags: tuple[bytes, ...]
    """The tags of peers over the list of sharers, for those that sent one."""
    vows: tuple[tuple[int, bytes], ...] = ()
    """Witnesses' signatures, each with the number of its witness, in the order of these."""

    def encoded(self) -> bytes:
        tags = len(self.tags).to_bytes(2, "little") + b"".join(self.tags)
        numbers = set_of([number for number, _ in self.vows])
        return with_length(self.places) + tags + with_length(numbers) + b"".join(vow for _, vow in self.vows)

    @classmethod
    def decoded(cls, data: bytes) -> Survivors:
        reader = Reader(data)
        places = reader.set()
        count = int.from_bytes(reader.take(2), "little")
        tags = tuple(reader.take(TAG) for _ in range(count))
        vows = tuple((number, reader.take(SIGNATURE)) for number in sorted(places_in(reader.set())))
        reader.end()
        return cls(places, tags, vows)
