"""Ways to estimate a gradient: what each costs, and the noise that theory predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from edge_client.gradient.drawing import counted
from edge_client.gradient.philox import block
from edge_client.wire.protocol import Training
from server.policy.assignment import cyclic, everything
from server.policy.passes import passes


@dataclass(frozen=True)
class Candidate:
    """A way to estimate."""

    training: Training
    per_client: int = 1
    """Units of a client; 0: all."""
    holders: tuple[int, ...] = (1,)
    """Clients whose estimates of a unit are averaged; each number is measured."""

    def groups(self, units: int) -> list[tuple[int, ...]]:
        """Which units stand together in a client's step."""
        return cyclic(units, -(-units // self.per_client)) if self.per_client else everything(units, 1)

    def possible(self, manifest: Manifest) -> bool:
        """Directions at bottlenecks are each example's own."""
        return self.training.per_example or not (manifest.bottlenecks and kind_of(self.training).along)

    def settled(self, manifest: Manifest) -> Candidate:
        """Settle the number of directions where it is left open, as the server does for a job."""
        kind, groups = kind_of(self.training), self.groups(len(manifest.units))
        directed = [kind.directed(manifest, self.training, units) for units in groups]
        return replace(self, training=counted(self.training, manifest, directed))


def forward_passes(manifest: Manifest, units: Sequence[int], training: Training) -> float:
    """Estimate a step's cost in forward passes over the same batch, by the blocks that it goes through."""
    return passes(kind_of(training), training, manifest, units)


# --- theory: see tests/edge_client/gradient/test_noise.py ------------------------------------------------------------


def expected_noise(training: Training, gradients: Array) -> float:
    """Mean square of an estimate's distance from the truth, for a unit that has its directions to itself.

    Args:
        training: the step's settings.
        gradients: [n, weights]; their sum is the truth. Each has directions of its own: an example's, or the batch's.
    """
    weights, count = gradients.shape[1], training.directions
    if training.kind != "orthogonal":
        return noise(training.kind, weights, count) * float(np.sum(gradients**2))
    whole = block(weights)
    firsts = np.arange(len(gradients)) * count
    total = 0.0
    for start in range(0, len(gradients) * count, whole):
        rows = np.clip(np.minimum(firsts + count, start + whole) - np.maximum(firsts, start), 0, None)
        moved = float(np.sum((rows @ gradients) ** 2))
        total += max(weights * float(rows @ np.sum(gradients**2, axis=1)) - moved, 0.0) / count**2
    return total


def noise_at_bottleneck(training: Training, entering: Array, leaving: Array) -> float | None:
    """Compute the noise of directions at a bottleneck; None where they are orthogonal.

    Args:
        training: the step's settings.
        entering: [n, tokens, features]: what each example's tokens bring into the factor, 0 where they only fill.
        leaving: [n, tokens, rank]: its gradient by what leaves the factor; their products' sum is the truth.
    """
    if training.kind == "orthogonal":
        return None
    tokens = np.einsum("nti,nui->ntu", entering, entering)
    lengths = np.einsum("ntt->nt", tokens)
    squares = np.sum(leaving**2, axis=2)
    truths = np.einsum("ntr,ntu,nur->", leaving, tokens, leaving, optimize=True)
    spread = leaving.shape[2] * float(lengths.sum(1) @ squares.sum(1))
    more = truths if training.kind == "normal" else truths - 2 * float(np.sum(lengths * squares))
    return (spread + float(more)) / training.directions


def noise(kind: str, weights: int, directions: int) -> float:
    """Compute the noise over the true gradient's square, for `directions` directions of one gradient."""
    if kind == "orthogonal":
        return max(weights / directions - 1, 0.0)
    return (weights + (1 if kind == "normal" else -1)) / directions


def cosine_with(noise: float) -> float:
    """Compute the cosine of an estimate of this noise with the truth."""
    return 1 / math.sqrt(1 + noise)
