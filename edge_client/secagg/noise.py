"""Add a device's share of a private sum's noise: whole numbers, which it adds to its update before the masks.

A sum is opened of `least` devices or more, and the shares of all but one of so many are all the noise that is counted:
one device may leave its share out, or know it. A device makes its update no longer than the clip, cuts every number off
to a whole one, which makes none longer, and adds normal numbers, rounded. What rounding can reveal is paid by `ROOM`.

Let a sum of n devices have shares of deviation s, in whole numbers, and one device move it by d, of length D at most
in N numbers. The sum of all roundings is between -n/2 and n/2 in each number, so the privacy loss is never
more than that of a normal sum, whose noise is s times the root of n, plus |d|_1 / s^2, which is sqrt(N) D / s^2 at
most. (Up to exp(-pi^2 s^2): so near are whole numbers that add up to the same to a smooth density.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array
from edge_client.errors import TrainingError

from .fixed import WHOLE, Parts
from .streams import stream

ROOM = 1 / 64
"""The share of the noise that is drawn beyond what is counted."""
FINEST = 1024.0
"""Whole numbers in a deviation of a share, at least."""
_TAIL = 12.0
"""Deviations of all shares together that have room in a sum: beyond them it wraps around, in one of 10^32."""
_BITS = 53
"""The bits of a double between 0 and 1."""


def normal_of(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers of as many uniform ones, an even count, by Box and Muller's way."""
    uniform = ((words >> np.uint64(64 - _BITS)) + np.uint64(1)).astype(np.float64) * 2.0**-_BITS  # above 0
    first, second = uniform.reshape(2, -1)
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


@dataclass(frozen=True)
class Share:
    """One device's share of the noise of a private sum."""

    noise: float
    """Deviations of the sum's noise that are counted, in clips."""
    clip: float
    """The most that an update's L2 norm may be."""
    least: int
    """Devices of whose parts the sum is opened."""

    @property
    def terms(self) -> bytes:
        """Encode the terms that all devices of a sum must share, or they cannot read each other."""
        return struct.pack(">dd", self.noise, self.clip)

    @property
    def deviation(self) -> float:
        return (1 + ROOM) * self.noise * self.clip / math.sqrt(self.least - 1)

    def scale(self, count: int) -> float:
        """Give the integer that a change of 1 becomes: the finest at which a sum of so many and its noise fit."""
        reach = count * self.clip + _TAIL * math.sqrt(count) * self.deviation
        return math.ldexp(1.0, math.frexp((2**31 - 1) / reach)[1] - 1)

    def rounding(self, count: int, numbers: int) -> float:
        """Bound what rounding adds to a device's epsilon, in a sum of so many devices, by so many numbers of its."""
        longest, whole = self.clip * self.scale(count), self.deviation * self.scale(count)
        return math.sqrt(numbers) * longest / whole**2

    def encoded(self, changes: Mapping[int, Array], count: int, secret: bytes) -> Parts:
        """Flat changes by their part, as they are added: clipped, whole, with noise, and everyone's weight."""
        self._check(count)
        length = math.sqrt(sum(float(np.square(change, dtype=np.float64).sum()) for change in changes.values()))
        if not math.isfinite(length):
            raise TrainingError("the update has numbers that are not finite: lower the learning rate")
        shorter = min(1.0, self.clip / length) if length else 1.0
        return {part: self._whole(change, shorter, count, secret, part) for part, change in changes.items()}

    def mean(self, total: NDArray[np.uint32], count: int, wanted: int) -> Array:
        """Decode a part's sum, noise and all, into the mean of as many devices as are wanted for it."""
        return (total[:-1].view(np.int32).astype(np.float64) / (self.scale(count) * wanted)).astype(np.float32)

    def _whole(self, change: Array, shorter: float, count: int, secret: bytes, part: int) -> NDArray[np.uint32]:
        scale = self.scale(count)
        kept = np.trunc(change.astype(np.float64) * (shorter * scale))
        words = stream(secret, part, 2 * -(-change.size // 2), np.uint64)
        drawn = np.rint(self.deviation * scale * normal_of(words)[: change.size])
        return np.append((kept + drawn).astype(np.int64), WHOLE).astype(np.uint32)  # modulo 2^32

    def _check(self, count: int) -> None:
        known = 0 < self.noise <= 1e6 and 0 < self.clip <= 1e9
        if not known or self.deviation * self.scale(count) < FINEST:
            raise TrainingError(
                f"the task's noise, {self.noise:g} clips of {self.clip:g}, is too little in a sum of {count} devices: "
                "nothing is sent; ask the server's operator"
            )
