"""Keep a device's files of one job: the task under way, its result, and the newest weights."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.names import under, within
from edge_client.events import Tell, silent
from edge_client.wire.protocol import Report, Task
from edge_client.wire.tensors import encode_update, parse_tensors

from .files import PRIVATE, SHARED, read_json, set_aside, write

T = TypeVar("T")
_WEIGHT, _OPTIMIZER = "w/", "o/"
"""The prefixes of the names of weights and of an optimizer's state in the files of this room."""


@dataclass(frozen=True)
class KnownJob:
    """A job that the device took part in."""

    id: str
    name: str
    bundle: str
    runtime: str


@dataclass(frozen=True)
class KeptWeights:
    """A version of a job's weights."""

    version: int
    weights: Weights
    optimizer: Weights = field(default_factory=dict[str, NDArray[Any]])
    """The server optimizer's state, in mode iteration."""
    published: float = 0.0
    """The time at which the server published it, where its task has that."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a task's training, without the weights that it does not train."""

    step: int
    loss: float
    examples: int
    seconds: float
    weights: Weights
    optimizer: Weights


class _Mark(msgspec.Struct):
    """The label in a file of tensors that says which task they are of."""

    bundle: str = ""
    version: int = 0
    published: float = 0.0
    task: str = ""
    data: str = ""
    step: int = 0
    loss: float = 0.0
    examples: int = 0
    seconds: float = 0.0


class JobStore:
    """The folder of one job."""

    def __init__(self, folder: Path, tell: Tell = silent) -> None:
        self.folder = folder
        self.tell = tell

    @property
    def about(self) -> KnownJob | None:
        return read_json(self.folder / "job.json", KnownJob, self.tell)

    def save_about(self, job: KnownJob) -> None:
        if self.about != job:
            write(self.folder / "job.json", msgspec.json.encode(job))

    # --- the task under way ---

    def task(self) -> Task | None:
        return read_json(self.folder / "task.json", Task, self.tell)

    def begin(self, task: Task) -> Task:
        """Take up a task, and give it as it is done; what was left of another one is dropped.

        An update that goes into a sum is made by a seed that the device draws: of a server that gives a version and a
        seed twice, the difference of two sums would reveal what one device added.
        """
        known = self.task()
        if known is None or known.id != task.id or (known.sum is None) != (task.sum is None):
            self.finish()
            known = None
        if task.sum is not None:
            task = replace(task, seed=own_seed(task) if known is None else known.seed)
        if known != task:
            private = PRIVATE if task.sum else SHARED
            write(self.folder / "task.json", msgspec.json.encode(task), mode=private)
        return task

    def finish(self) -> None:
        """Forget the task, then its result, which without its task is not sent."""
        for name in ("task.json", "progress.safetensors", "update.safetensors", "sum.json"):
            (self.folder / name).unlink(missing_ok=True)

    def save_progress(self, task: Task, data: str, progress: Checkpoint) -> None:
        mark = _Mark(
            bundle=task.bundle,
            version=task.version,
            task=task.id,
            data=data,
            step=progress.step,
            loss=progress.loss,
            examples=progress.examples,
            seconds=progress.seconds,
        )
        self._save("progress", mark, progress.weights, progress.optimizer)

    def progress(self, task: Task, data: str) -> Checkpoint | None:
        """Load this task's progress, trained on the same data; None without any."""
        saved = self._load("progress")
        if saved is None:
            return None
        mark, weights, optimizer = saved
        if (mark.task, mark.data, mark.bundle, mark.version) != (task.id, data, task.bundle, task.version):
            return None
        return Checkpoint(mark.step, mark.loss, mark.examples, mark.seconds, weights, optimizer)

    def save_update(self, tensors: Weights, report: Report) -> None:
        """Once it is on disk, training need not be repeated."""
        write(self.folder / "update.safetensors", encode_update(tensors, report))
        (self.folder / "progress.safetensors").unlink(missing_ok=True)

    def update(self) -> bytes | None:
        """Return the finished result of the task under way, as it is sent."""
        path = self.folder / "update.safetensors"
        return path.read_bytes() if path.is_file() and self.task() is not None else None

    # --- a sum that the result is added to ---

    def save_sum(self, kept: object) -> None:
        """Keep a secure sum's secrets and what was received of it; secret until the task is forgotten."""
        write(self.folder / "sum.json", msgspec.json.encode(kept), mode=PRIVATE)

    def sum(self, kind: type[T]) -> T | None:
        return read_json(self.folder / "sum.json", kind, self.tell)

    # --- weights ---

    def save_weights(self, bundle: str, kept: KeptWeights) -> None:
        self._save(
            "weights",
            _Mark(bundle=bundle, version=kept.version, published=kept.published),
            kept.weights,
            kept.optimizer,
        )

    def weights(self, bundle: str) -> KeptWeights | None:
        saved = self._load("weights")
        if saved is None or saved[0].bundle != bundle:
            return None
        mark, weights, optimizer = saved
        return KeptWeights(mark.version, weights, optimizer, mark.published)

    def save_personal(self, bundle: str, version: int, weights: Weights) -> None:
        self._save("personal", _Mark(bundle=bundle, version=version), weights, {})

    def personal(self, bundle: str) -> KeptWeights | None:
        saved = self._load("personal")
        return None if saved is None or saved[0].bundle != bundle else KeptWeights(saved[0].version, saved[1])

    def _save(self, name: str, mark: _Mark, weights: Weights, optimizer: Weights) -> None:
        from safetensors.numpy import save

        tensors = under(_WEIGHT, weights) | under(_OPTIMIZER, optimizer)
        contiguous = {n: np.ascontiguousarray(value) for n, value in tensors.items()}
        data = save(contiguous, {"mark": msgspec.json.encode(mark).decode()})
        # safetensors tells a file that is too short from a whole one, not one with other bytes
        write(self.folder / f"{name}.safetensors", hashlib.sha256(data).digest() + data)

    def _load(self, name: str) -> tuple[_Mark, Weights, Weights] | None:
        path = self.folder / f"{name}.safetensors"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        digest, data = content[:32], content[32:]
        if hashlib.sha256(data).digest() != digest:
            set_aside(path, "its digest is wrong", self.tell)
            return None
        tensors, metadata = parse_tensors(data)
        mark = msgspec.json.decode(metadata["mark"], type=_Mark)
        return mark, within(tensors, _WEIGHT), within(tensors, _OPTIMIZER)


def own_seed(_task: Task) -> int:
    """Draw the seed of an update that goes into a secret sum, in place of the one that the server names."""
    return secrets.randbits(63)
