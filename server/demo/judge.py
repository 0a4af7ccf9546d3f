"""Evaluate weights, and a device that trains alone, by the bundle's programs, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.numpy import load_file

from edge_client.arrays import Weights
from edge_client.bundle.adapters import unfolded
from edge_client.bundle.folder import Bundle
from edge_client.data.examples import Examples
from edge_client.training.epoch import evaluate
from edge_client.training.round import client_round
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import Task, Training
from server.demo.intents import Phrase

if TYPE_CHECKING:
    from typing_extensions import Self

ADAPTER = "adapter_model.safetensors"
ALONE = {"estimator": "exact", "optimizer": "adamw", "learning_rate": 0.003, "head_learning_rate": 0.003}
"""The training of a device that shares nothing: the usual one for its rows alone."""


@dataclass(frozen=True)
class Local:
    """One device's rows and steps, to train alone."""

    rows: Sequence[Phrase]
    steps: int
    seed: int


class Judge:
    """The bundle on one runtime of this machine."""

    def __init__(self, bundle: Path, runtime: str, training: Training) -> None:
        self._bench = TrainingSession(Bundle.open(bundle, verify=False), runtime, threads=1)
        self._training = training
        self._task = self._local_task(Local([], 0, 0))
        self.initial = self._bench.bundle.initial_adapter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bench.close()

    def accuracy(self, rows: Sequence[Phrase], *models: Weights) -> list[float]:
        """Measure the share of rows that each model gets right."""
        passes = self._bench.passes(self._task, None)
        encoder = self._bench.encoder(self._training.batch, self._training.length)
        scores = evaluate(passes.logits, self._examples(rows), encoder, self._bench.kind, models)
        return [score.means[self._bench.kind.counted] for score in scores]

    def trained(self, weights: Weights, local: Local, advance: Callable[[], None] = lambda: None) -> Weights:
        """Return the weights after some steps on one device's rows, with nobody to share the units with."""
        task, bench = self._local_task(local), self._bench
        data = bench.data(task, self._examples(local.rows))
        return client_round(task, bench.model(task), weights, data, on_step=lambda _: advance()).personalized

    def adapter(self, folder: Path) -> Weights:
        """Return a downloaded adapter's weights, by the names that programs take."""
        return unfolded(load_file(folder / ADAPTER), self.initial)

    def _examples(self, rows: Sequence[Phrase]) -> Examples:
        return self._bench.examples([dict(row) for row in rows])

    def _local_task(self, local: Local) -> Task:
        """Build a round of one device: all units are its own."""
        training = replace(self._training, mode="epoch", iterations=local.steps, **ALONE)
        return self._bench.task(training, seed=local.seed)
