"""The private mean of a round's updates: each clipped as a whole, their sum with Gaussian noise, by a fixed number.

Every client counts the same, whatever number of examples it reports, and each parameter's sum is divided by how many
clients the round wants there, not by how many came: nothing in it depends on one client by more than the clip.
Parameters that nobody trained get their noise too, so that it does not show who was there.

The clip can follow the updates (Andrew et al., 2021, arXiv 1905.03871): by a count, with noise of its own, of how many
were shorter, it moves until a quantile of them is. What the count costs is taken out of the noise of the job, which
stays what was accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.wire.clipping import changes_of, length_of, shortened
from server.privacy.noise import Noise

RATE = 0.2
"""The clip's rate: its logarithm moves by this, times the count's distance from the quantile, in a round."""
_COUNTED = 1 / 20
"""The share of a round's clients that is the deviation of the count's noise, as the paper has it."""
_DEAREST = 1.6
"""Times the job's noise that the count's must be, so that it costs a tenth of the budget at most."""
_TOUCHED = 0.99
"""The share of the clip above which an update counts as clipped on its device: it lost some bits on its way."""


class Shares(NamedTuple):
    """A job's noise, as it is laid on what is published."""

    of_sum: float
    """Deviations of the sum's noise, in clips."""
    of_count: float
    """The deviation of the count's noise."""


def shares_of(noise: float, per_round: float, *, counts: bool) -> Shares:
    """Split one Gaussian mechanism of this noise into a sum of updates and a count beside it."""
    if not counts:
        return Shares(noise, 0.0)
    of_count = max(_COUNTED * per_round, _DEAREST * noise)
    return Shares((noise**-2 - (2 * of_count) ** -2) ** -0.5, of_count)


@dataclass(frozen=True)
class Mechanism:
    """The mechanism that makes a job's updates private."""

    noise: float
    """The noise multiplier: deviations of the whole, beside what one client can change."""
    clip: float
    """The norm to which an update is clipped: at the start, if it adapts."""
    per_round: int
    quantile: float | None = None
    """The share of updates that the clip leaves as they are; None: the clip stays."""

    def clip_at(self, followed: float | None) -> float:
        """Give a round's clip: that which followed the updates so far, or the first."""
        return self.clip if followed is None else followed

    def mean(
        self,
        start: Weights,
        followed: float | None,
        updates: Iterable[Mapping[str, Array]],
        wanted: Mapping[str, int],
        noise: Noise,
    ) -> tuple[Weights, float | None]:
        """Compute the private mean change of the `wanted` parameters, and the next round's clip."""
        clip = self.clip_at(followed)
        shares = shares_of(self.noise, self.per_round, counts=self.quantile is not None)
        sums = {name: np.zeros(start[name].shape) for name in wanted}
        short = 0.0
        for update in updates:
            changes = changes_of(start, {name: update[name] for name in update if name in wanted})
            short += 0.5 if length_of(changes) < _TOUCHED * clip else -0.5
            for name, change in shortened(changes, clip).items():
                sums[name] += change
        change = {name: self._noisy(sums[name], shares.of_sum * clip, wanted[name], noise) for name in sorted(wanted)}
        return change, self._followed(clip, short, shares, noise)

    def _noisy(self, total: NDArray[np.float64], deviation: float, wanted: int, noise: Noise) -> Array:
        drawn = noise.normal(total.size).reshape(total.shape)
        return ((total + deviation * drawn) / wanted).astype(np.float32)

    def _followed(self, clip: float, short: float, shares: Shares, noise: Noise) -> float | None:
        """Find the next round's clip, where it follows updates; `short`: half of how many more were shorter."""
        if self.quantile is None:
            return None
        counted = (short + shares.of_count * float(noise.normal(1)[0])) / self.per_round + 0.5
        return float(np.float32(clip * math.exp(-RATE * (counted - self.quantile))))
