"""Lock pairs of devices in a sum, by their own keys and by those of the round: nobody between them can read along.

    lock of a pair   HKDF-SHA256(four X25519 results, salt=context, "spry sums lock" + both ends), 64 bytes: a key of
                     HMAC-SHA256, and a seed of pads
    the four         own keys; keys of the round; the first end's own with the other's of the round; and the other way
    an end           its own public key, its key of the round, its place, how many units and which (2 bytes each)

The end whose own key is lower in the order of bytes stands first. Nobody signs a key of the round: a lock with one that
is not its device's fits no other, and neither do the pads and tags derived from it. A key of the round that is opened,
as a device vanished, opens none of its locks: that takes its own key too.

Own keys are Ed25519's. X25519 takes the same secret scalar (RFC 8032, 5.1.5), and the same point in the coordinates of
RFC 7748, 4.1: u = (1 + y) / (1 - y).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

import numpy as np

from edge_client.errors import TrainingError

from .shamir import WIDE, drawn
from .streams import KEY, TAG, agreed, derived, stream

_LOCK = b"spry sums lock"
_FIELD = 2**255 - 19


def scalar_of(seed: bytes) -> bytes:
    """X25519's secret of an Ed25519 key's."""
    return hashlib.sha512(seed).digest()[:KEY]


def point_of(identity: bytes) -> bytes:
    """X25519's public key of an Ed25519 key's."""
    y = int.from_bytes(identity, "little") & (1 << 255) - 1
    try:
        return ((1 + y) * pow(1 - y, -1, _FIELD) % _FIELD).to_bytes(KEY, "little")
    except ValueError:
        raise TrainingError(
            "a device's own key is invalid: this device sends nothing, as the server or a device is lying"
        ) from None


@dataclass(frozen=True)
class End:
    """A device as another knows it."""

    identity: bytes
    mask: bytes
    place: int
    units: tuple[int, ...]

    def encoded(self) -> bytes:
        numbers = self.place, len(self.units), *self.units
        return self.identity + self.mask + struct.pack(f"<{len(numbers)}H", *numbers)


@dataclass(frozen=True)
class Lock:
    """One end's view of a lock between two devices."""

    proof: bytes
    common: bytes
    first: bool

    @classmethod
    def between(cls, seed: bytes, mask: bytes, here: End, there: End, context: bytes) -> Lock:
        """Derive a lock from this end's own secret key and its secret key of the round."""
        own, other = scalar_of(seed), point_of(there.identity)
        first = here.identity < there.identity
        crossed = [agreed(own, there.mask), agreed(mask, other)]
        ends = [here.encoded(), there.encoded()]
        shared = [agreed(own, other), agreed(mask, there.mask), *(crossed if first else crossed[::-1])]
        purpose = _LOCK + b"".join(ends if first else ends[::-1])
        both = derived(b"".join(shared), context, purpose, 2 * KEY)
        return cls(both[:KEY], both[KEY:], first)

    def pads(self, *, own: bool) -> tuple[bytes, bytes]:
        """Derive the pads of the shares of both secrets that this end makes for the other, or is made."""
        wide = stream(self.common, 0 if own == self.first else 1, 2 * WIDE, np.uint8).tobytes()
        return drawn(wide[:WIDE]), drawn(wide[WIDE:])

    def tag(self, said: bytes, *, own: bool) -> bytes:
        """Tag a message as this end's, or the other's."""
        end = b"\0" if own == self.first else b"\1"
        return hmac.digest(self.proof, end + said, hashlib.sha256)[:TAG]
