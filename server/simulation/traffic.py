"""What a round moves between server and clients: in bytes as they go over the wire, and in numbers as papers count.

Every client of a round is taken to hold no earlier version: it gets all weights that move. In mode iteration it gets
them once, and then each step's record.
"""

from __future__ import annotations

from collections.abc import Sequence

from safetensors.numpy import save

from edge_client.manifest import Manifest
from edge_client.optimizers import Weights
from edge_client.protocol import Task, Training
from edge_client.scalars import encode_record
from server.models import Model
from server.outcomes import Outcome
from server.simulation.work import Trained


class Traffic:
    """Sums over a round's clients."""

    def __init__(self, manifest: Manifest, training: Training) -> None:
        self._manifest = manifest
        self._training = training
        self.bytes_up = self.bytes_down = self.numbers_up = self.numbers_down = 0
        self._whole: int | None = None

    def epoch(self, task: Task, trained: Trained, weights: Weights) -> None:  # noqa: ARG002 -- a round's tasks weigh the same
        """A client's update, and the weights that it began with."""
        said = trained.report | {"seconds": 0.0}  # so that the count does not vary with the clock's digits
        self.bytes_up += len(save(trained.update, {"report": str(said)}))
        self.numbers_up += sum(value.size for value in trained.update.values())
        self._download(weights)

    def iteration(self, reports: Sequence[bytes], outcome: Outcome, model: Model, *, first: bool) -> None:
        """All clients' numbers of a step, and its record to each of them."""
        assert outcome.record is not None
        head = outcome.record.head_gradient
        record = encode_record(outcome.record, self._manifest, self._training)
        for report in reports:
            if first:
                self._download(model.weights | model.optimizer)
            self.bytes_up += len(report)
            self.bytes_down += len(record)
        kinds = 2 if self._manifest.head and head is None else 1
        scalars = kinds * self._training.directions * (self._training.batch if self._training.per_example else 1)
        self.numbers_up += len(reports) * (scalars + (0 if head is None else head.size))
        self.numbers_down += len(reports) * (len(reports) * (scalars + 1) + (0 if head is None else head.size))

    def _download(self, weights: Weights) -> None:
        if self._whole is None:
            self._whole = len(save(weights))
        self.bytes_down += self._whole
        self.numbers_down += sum(value.size for value in weights.values())

    def totals(self) -> dict[str, int]:
        return {
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "numbers_up": self.numbers_up,
            "numbers_down": self.numbers_down,
        }
