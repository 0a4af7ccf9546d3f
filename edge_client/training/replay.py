"""Mode iteration: from a published record to the next weights, the same on the server and on every client."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.gradient.drawing import Draw, combine, step_directions
from edge_client.wire.protocol import ServerOptimizers, Training
from edge_client.wire.scalars import Participant, StepRecord, split_head

from .optimizers import server_step


def replay(
    record: StepRecord,
    weights: Weights,
    state: Weights,
    manifest: Manifest,
    training: Training,
    optimizers: ServerOptimizers,
    draw: Draw = step_directions,
) -> frozenset[str]:
    """Apply one step to weights of version `record.version - 1`, in place; the names of the parameters that moved."""
    moved = changes(record, manifest, training, draw)
    server_step(weights, moved, state, optimizers, manifest.head_names)
    return frozenset(moved)


def changes(record: StepRecord, manifest: Manifest, training: Training, draw: Draw = step_directions) -> Weights:
    """Compute the mean change of every parameter in this step, weighted by examples: a local SGD step each."""
    totals: dict[str, NDArray[np.float64]] = {}
    holders: dict[str, int] = {}
    for participant in record.participants:
        for name, gradient in gradients(participant, manifest, training, record.iteration, draw).items():
            share = participant.report.examples * gradient.astype(np.float64)
            totals[name] = totals[name] + share if name in totals else share
            holders[name] = holders.get(name, 0) + participant.report.examples
    means = {name: totals[name] / holders[name] for name in totals}
    if record.head_gradient is not None:
        means.update(split_head(record.head_gradient.astype(np.float64), manifest))
    head = manifest.head_names
    rates = training.learning_rate, training.head_learning_rate or training.learning_rate
    return {name: (-rates[name in head] * value).astype(np.float32) for name, value in means.items()}


def gradients(
    participant: Participant, manifest: Manifest, training: Training, iteration: int, draw: Draw = step_directions
) -> Weights:
    """Compute the gradient that a participant's scalars stand for."""
    drawn = draw(manifest, participant.units, participant.seed, training, iteration)
    return combine(participant.report, drawn, manifest, training)
