"""Mode iteration: from a published record to the next weights, the same on the server and on every client."""

from __future__ import annotations

from .guide import guide_in
from .manifest import Manifest
from .optimizers import Weights, server_step
from .protocol import ServerOptimizers, Training
from .scalars import StepRecord, changes


def replay(
    record: StepRecord,
    weights: Weights,
    state: Weights,
    manifest: Manifest,
    training: Training,
    optimizers: ServerOptimizers,
) -> frozenset[str]:
    """Apply one step to weights of version `record.version - 1`, in place; the names of the parameters that moved."""
    moved = changes(record, manifest, training, guide_in(state))
    server_step(weights, moved, state, optimizers, frozenset(parameter.name for parameter in manifest.head))
    return frozenset(moved)
