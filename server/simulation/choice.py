"""Ways to estimate a gradient: what each costs, and what theory says of its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.chain import cut_for
from edge_client.manifest import Manifest
from edge_client.protocol import Training
from server.assignment import cyclic, everything


@dataclass(frozen=True)
class Choice:
    """A way to estimate."""

    training: Training
    per_client: int = 1
    """Units of a client; 0: all."""
    holders: tuple[int, ...] = (1,)
    """Clients whose estimates of a unit are averaged; each number is measured."""

    def groups(self, units: int) -> list[tuple[int, ...]]:
        """Which units stand together in a client's step."""
        return cyclic(units, -(-units // self.per_client)) if self.per_client else everything(units, 1)


def forward_passes(manifest: Manifest, units: Sequence[int], training: Training) -> float:
    """What a client's step costs beside a forward pass over the same batch, by the blocks that it goes through."""
    segments = manifest.segments
    blocks = max(segment.last_block for segment in segments)
    share = (blocks - segments[cut_for(manifest, units)].first_block) / blocks
    if training.estimator == "central":
        return 2.0 * training.directions
    return 1 + (2 if training.estimator == "exact" else training.directions) * share


def formula(kind: str, weights: int, directions: float) -> float:
    """The cosine that so many directions of a unit's own give; see tests/edge_client/test_noise.py."""
    if kind == "orthogonal":
        noise = max(weights / directions - 1, 0.0)
    else:
        noise = (weights + (1 if kind == "normal" else -1)) / directions
    return 1 / math.sqrt(1 + noise)
