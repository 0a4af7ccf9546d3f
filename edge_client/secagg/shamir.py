"""A secret of 32 bytes in shares, of which a threshold gives it back and fewer reveal nothing (Shamir).

The field is that of the largest prime below 2^256, so that a share is as long as the secret; of 2^248 secrets all but
one are below it. A device and each holder draw the same pads. The polynomial goes through the secret and through as
many pads as a threshold needs beside it, which are shares that nobody has to send; of the others the server is given
what they are more than their pads. A holder opens a share by its pad, and a device that starts again makes the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PRIME = 2**256 - 189
SHARE = 32
"""Bytes of a share."""
WIDE = 48
"""Bytes from which a pad is drawn: what they are off from uniform, nobody can see."""


def threshold(members: int, least: int) -> int:
    """Shares that give a secret back, of so many: its holders and the device itself are as many as a sum needs."""
    return max(least - 1, members // 3)


def drawn(wide: bytes) -> bytes:
    """Draw a pad from uniform bytes."""
    return _bytes(int.from_bytes(wide, "big"))


def less(share: bytes, pad: bytes) -> bytes:
    """Subtract a pad from a share: by itself the result reveals nothing of the share."""
    return _bytes(int.from_bytes(share, "big") - int.from_bytes(pad, "big"))


def more(dealt: bytes, pad: bytes) -> bytes:
    """Return the share that `less` took the pad from."""
    return _bytes(int.from_bytes(dealt, "big") + int.from_bytes(pad, "big"))


def split(secret: bytes, points: Sequence[int], given: Mapping[int, bytes]) -> list[bytes]:
    """Split a secret into a share for each point, a number above 0, where some have theirs; one more gives it back."""
    return [given[point] if point in given else _value({0: secret, **given}, point) for point in points]


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Join the secret from shares by their points."""
    return _value(shares, 0)


def _value(known: Mapping[int, bytes], point: int) -> bytes:
    """Evaluate the polynomial of least degree through what is known at a point (Lagrange)."""
    total = 0
    for one, value in known.items():
        above = below = 1
        for other in known:
            if other != one:
                above, below = above * (point - other) % PRIME, below * (one - other) % PRIME
        total += int.from_bytes(value, "big") * above * pow(below, -1, PRIME)
    return _bytes(total)


def _bytes(number: int) -> bytes:
    return (number % PRIME).to_bytes(SHARE, "big")
