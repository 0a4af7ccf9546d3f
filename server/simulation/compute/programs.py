"""A bundle as the model of a simulation: clients compute by its programs, one after the other, as devices do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from edge_client.arrays import Array, Weights
from edge_client.bundle.adapters import folded
from edge_client.bundle.folder import Bundle
from edge_client.data.batches import Batch
from edge_client.data.templates import Template
from edge_client.step.passes import Passes
from edge_client.store import files
from edge_client.training.round import Computation
from edge_client.training.session import CACHE_WITHOUT_LIMIT, TrainingSession
from edge_client.wire.protocol import Task, Training
from server.formats.learned import Learned, Version
from server.formats.peft import peft_files
from server.simulation.compute.learner import Given


class _Predicted(NamedTuple):
    logits: Array


class Programs:
    """An open bundle and one of its runtimes.

    Args:
        bundle: the folder.
        runtime: whose programs run, on one thread: further processes use further cores, and no bit depends on them.
        training: whose batch and length predictions have too.
    """

    def __init__(self, bundle: Path, runtime: str, training: Training) -> None:
        self._session = TrainingSession(Bundle.open(bundle), runtime, threads=1)
        self._training = training
        self._whole = self._session.bundle.initial_adapter()
        self.manifest = self._session.manifest
        self.initial: Weights = {one.name: self._whole[one.name] for one in self.manifest.trained}

    @property
    def tokenizer(self) -> Tokenizer:
        return self._session.bundle.tokenizer()

    @property
    def template(self) -> Template:
        """Makes texts of conversations."""
        return self._session.template

    def run(self, tasks: Sequence[Task], work: Callable[[int, Computation], Given]) -> list[Given]:
        """Give what `work(number, passes)` returns for each task, one after the other: programs stay loaded."""
        return [work(number, self._passes(task)) for number, task in enumerate(tasks)]

    def forward(self, weights: Sequence[Weights], batches: Sequence[Batch]) -> list[_Predicted]:
        """Compute logits of each batch by its own weights."""
        return [_Predicted(self._predicting.logits(batch, own)) for own, batch in zip(weights, batches, strict=True)]

    @cached_property
    def _predicting(self) -> Passes:
        return self._passes(self._session.task(self._training))

    def _passes(self, task: Task) -> Passes:
        own = replace(task, runtime=self._session.runtime_name)
        return Passes(self.manifest, self._session.runtime, own, cache_bytes=CACHE_WITHOUT_LIMIT)

    def save_adapter(self, folder: Path, weights: Weights) -> None:
        """Write a folder that `PeftModel.from_pretrained` loads."""
        tensors = folded(self._whole | weights)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in peft_files(Learned(Version("simulation", 0, ""), self._session.bundle, tensors)).items():
            files.write(folder / name, content)
