"""Count what a client's step costs, in forward passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edge_client.bundle.chain import cut_for
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.estimator import Estimator
from edge_client.wire.protocol import Training

_ROUNDED = 0.005
"""The tolerance in passes: budgets are written with two decimals."""
ONE_TOKEN = 0.16
"""The cost of a direction in a block that computes a single token's result. In MiniLM's last block, by ONNX
Runtime, 8 texts of 32 tokens, K = 64, it is .17 for LoRA of rank 4, drawing included, and .07 at bottlenecks; a
direction through another block costs 1.15 to 1.25."""


def affordable(cost: float, most: float) -> bool:
    """Tell whether a budget of passes pays for a step."""
    return cost <= most + _ROUNDED


def passes(estimator: type[Estimator], training: Training, manifest: Manifest, units: Sequence[int]) -> float:
    """Count the forward passes of a client's step with these units."""
    end = estimator.exact_from(manifest, training, cut_for(manifest, units))
    back = 0.0 if end is None else share_from(manifest, end)
    directed = estimator.directed(manifest, training, units)
    through = carried(manifest, directed) - (0.0 if end is None or not directed else carried_from(manifest, end))
    return estimator.in_passes(training, tangents=training.directions * through, behind=back)


def carried(manifest: Manifest, units: Iterable[int]) -> float:
    """Compute the share of the model's blocks that a direction of these units goes through; heads cost nothing."""
    return carried_from(manifest, cut_for(manifest, units))


def carried_from(manifest: Manifest, segment: int) -> float:
    """Compute the share of the blocks that a direction goes through in a segment and behind it."""
    narrow = sum(1 for behind in manifest.segments[segment:] if behind.one_token)
    return share_from(manifest, segment) - (1 - ONE_TOKEN) * narrow / manifest.model.blocks


def share_from(manifest: Manifest, segment: int) -> float:
    """Compute the share of the model's blocks in a segment or behind it."""
    return 1 - manifest.segments[segment].first_block / manifest.model.blocks
