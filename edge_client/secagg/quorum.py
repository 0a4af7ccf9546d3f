"""Compute how many witnesses must have signed who is in a sum: devices and the server each know it.

Whoever signs two sums is lying. Two sums that q of n witnesses have signed have 2q - n witnesses in common: so many
must lie, or more, for a server to have both. Three tenths of the devices may vanish: where all are witnesses, as many
as are left must sign. Of more devices, more or fewer witnesses vanish by chance, and the quorum leaves room.
"""

from __future__ import annotations

WITNESSES = 26
"""The most witnesses of a sum."""
_OF_MOST = 15


def witnesses_of(devices: int) -> int:
    return min(devices, WITNESSES)


def quorum(witnesses: int) -> int:
    return witnesses - 3 * witnesses // 10 if witnesses < WITNESSES else _OF_MOST
