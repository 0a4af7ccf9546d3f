"""Count a round's traffic between server and clients: in bytes on the wire, and in numbers as papers count.

Bytes are those of the bodies that a server counts too (`server.storage.work.traffic`), without HTTP's headers and the
few hundred bytes of a check-in. Weights are safetensors: four bytes for each number, 120 to 170 for each tensor's name
and shape, and in an update some 150 for the client's report. Numbers are weights, derivatives and seeds; losses and
counts of examples, a few for each message, are left out, and so are moments of features, which few clients send. Every
client of a round is taken to hold no earlier version: it gets all weights that move. In mode iteration it gets them
once, with the server optimizer's state, and then each step's record. A real client that took part in the round before
has less to fetch in mode iteration, the records alone; in mode epoch all weights move in a round, so that only the
first round's, which come with the bundle, are fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

from safetensors.numpy import save

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.training.features import without_moments
from edge_client.wire.protocol import Report, Task, Training
from edge_client.wire.scalars import encode_record
from edge_client.wire.tensors import encode_update
from server.simulation.compute.work import Trained
from server.strategy.state import ServerState
from server.strategy.updates import Outcome

_SEED = 1
"""A number that a client's directions are drawn from."""


class RoundTraffic:
    """Sums over a round's clients."""

    def __init__(self, manifest: Manifest, training: Training) -> None:
        self._manifest = manifest
        self._training = training
        self._head = manifest.head_size
        self.bytes_up = self.bytes_down = self.numbers_up = self.numbers_down = self.numbers_down_own = 0
        self._sizes: dict[frozenset[str], tuple[int, int]] = {}

    def epoch(self, task: Task, trained: Trained, weights: Weights) -> None:
        """Count a client's update, and the weights that it began with."""
        self.bytes_up += len(encode_update(trained.update, Report(**trained.report)))
        self.numbers_up += sum(value.size for value in without_moments(trained.update).values())
        self._download(task, weights)

    def iteration(
        self, tasks: Sequence[Task], reports: Sequence[bytes], outcome: Outcome, model: ServerState, *, first: bool
    ) -> None:
        """Count all clients' numbers of a step, and its record to each of them."""
        assert outcome.record is not None
        record = encode_record(outcome.record, self._manifest, self._training)
        gradient = 0 if outcome.record.head_gradient is None else self._head
        derivatives = self._training.directions * self._training.rows * (2 if self._head and not gradient else 1)
        for task, report in zip(tasks, reports, strict=True):
            if first:
                self._download(task, model.repeatable)
            self.bytes_up += len(report)
            self.bytes_down += len(record)
            self.numbers_up += derivatives + gradient
            self.numbers_down += len(reports) * (derivatives + _SEED) + gradient
            self.numbers_down_own += _SEED

    def _download(self, task: Task, weights: Weights) -> None:
        self._receive(weights)
        self.numbers_down_own += sum(self._manifest.units[unit].size for unit in task.units)

    def _receive(self, tensors: Weights) -> None:
        """Tensors of the same names are as large for every client."""
        names = frozenset(tensors)
        if names not in self._sizes:
            self._sizes[names] = len(save(tensors)), sum(value.size for value in tensors.values())
        size, numbers = self._sizes[names]
        self.bytes_down += size
        self.numbers_down += numbers

    def totals(self) -> dict[str, int]:
        return {
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "numbers_up": self.numbers_up,
            "numbers_down": self.numbers_down,
            "numbers_down_own": self.numbers_down_own,
        }
