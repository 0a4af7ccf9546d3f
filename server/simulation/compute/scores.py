"""Score weights on a set of examples."""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.arrays import Weights
from edge_client.data.batches import in_order
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.tasks.registry import task_named
from edge_client.tasks.task import Score, combined
from server.simulation.compute.learner import Model


def score(model: Model, encoder: TextEncoder, examples: Sequence[Example], weights: Weights) -> Score:
    """Score weights on a part of the test set."""
    task = task_named(model.manifest.model.task)
    scores: list[Score] = []
    for part in in_order(examples, encoder, task.encode):
        (computed,) = model.forward([weights], [part.batch])
        scores.append(task.score(computed.logits[: len(part.examples)], part))
    return combined(scores)
