"""A secret of 32 bytes in shares, of which a threshold gives it back and fewer say nothing (Shamir).

The field is that of the least prime above 2^256. The polynomial is drawn from the secret itself, by HKDF and ChaCha20:
a device that starts again makes the same shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .streams import KEY, derived, stream

PRIME = 2**256 + 297
SHARE = 33
"""Bytes of a share."""
_WIDE = 48
"""Bytes from which a coefficient is drawn: what they are off from uniform, nobody can see."""


def threshold(members: int) -> int:
    """Shares that give a secret back, of so many."""
    return max(2, members // 3)


def split(secret: bytes, points: Sequence[int], needed: int, context: bytes) -> list[bytes]:
    """A share for each point, which is a number above 0."""
    drawn = stream(derived(secret, context, b"spry sums polynomial"), 0, _WIDE * (needed - 1), np.uint8).tobytes()
    polynomial = [int.from_bytes(secret, "big")]
    polynomial += [int.from_bytes(drawn[start : start + _WIDE], "big") for start in range(0, len(drawn), _WIDE)]
    return [_value(polynomial, point).to_bytes(SHARE, "big") for point in points]


def _value(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def joined(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret of shares by their points; None where they are of no secret of 32 bytes."""
    total = 0
    for point, share in shares.items():
        above = below = 1
        for other in shares:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        total += int.from_bytes(share, "big") * above * pow(below, -1, PRIME)
    secret = total % PRIME
    return secret.to_bytes(KEY, "big") if secret < 1 << 8 * KEY else None
