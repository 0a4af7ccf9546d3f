"""What a client's step costs, in forward passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edge_client.bundle.chain import cut_for
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.estimator import Estimator
from edge_client.wire.protocol import Training


def passes(estimator: type[Estimator], training: Training, manifest: Manifest, units: Sequence[int]) -> float:
    """The step of a client with these units, in forward passes."""
    end = estimator.exact_from(manifest, training, cut_for(manifest, units))
    back = 0.0 if end is None else share_from(manifest, end)
    directed = estimator.directed(manifest, training, units)
    through = tangents(manifest, directed, training) - (training.directions * back if directed else 0.0)
    return estimator.in_passes(training, tangents=through, behind=back)


def tangents(manifest: Manifest, units: Sequence[int], training: Training) -> float:
    """The shares of the model's blocks that a step's directions go through on their way to the head, added up."""
    return training.directions * behind(manifest, units)


def behind(manifest: Manifest, units: Iterable[int]) -> float:
    """The share of the model's blocks in or behind the first that uses one of these units; heads cost nothing."""
    return share_from(manifest, cut_for(manifest, units))


def share_from(manifest: Manifest, segment: int) -> float:
    """The share of the model's blocks in a segment or behind it."""
    return 1 - manifest.segments[segment].first_block / manifest.model.blocks
