"""What a device keeps for one server, so that no crash or reboot costs it more than a few steps.

    HOME/SERVER/identity.json                 the device's id and secret, for its user's eyes only
                device.key                    the key that it signs requests with instead of a secret
                publisher.key                 whose bundles alone are taken, where that is pinned
                bundles/SHA256/               a bundle's files, and what is there of those being downloaded;
                                              which runtimes gave right results (`tried`)
                jobs/JOB/job.json             which bundle and runtime the job uses
                         task.json            the task under way
                         progress.safetensors where its training stands
                         update.safetensors   its finished result, until the server has it
                         sum.json             keys of the round, where the result is added to others' in secret
                         weights.safetensors  the newest global weights with their version
                         personal.safetensors the adapter that this device trained last

A file is written beside its place and moved there when it is on disk. One that cannot be read all the same is set
aside.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.names import under, within
from edge_client.errors import StoreError
from edge_client.events import Tell, silent
from edge_client.keys import SECRET, make, read_public, read_secret
from edge_client.wire.proofs import Signing
from edge_client.wire.protocol import REPORT, Enrolled, Report, Task

from .files import (
    PRIVATE,
    TEMPORARY,
    make_folder,
    parse_tensors,
    read_json,
    safe_name,
    server_folder,
    set_aside,
    write,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
_WEIGHT, _OPTIMIZER = "w/", "o/"
"""Before the names of weights and of an optimizer's state in the files of this room."""


@dataclass(frozen=True)
class KnownJob:
    """A job that the device took part in."""

    id: str
    name: str
    bundle: str
    runtime: str


@dataclass(frozen=True)
class Kept:
    """A version of a job's weights."""

    version: int
    weights: Weights
    optimizer: Weights = field(default_factory=dict[str, NDArray[Any]])
    """The server optimizer's state, in mode iteration."""


@dataclass(frozen=True)
class Checkpoint:
    """Where the training of a task stood, without the weights that it does not train."""

    step: int
    loss: float
    examples: int
    seconds: float
    weights: Weights
    optimizer: Weights


class _Mark(msgspec.Struct):
    """What a file of tensors says about itself."""

    bundle: str = ""
    version: int = 0
    task: str = ""
    data: str = ""
    step: int = 0
    loss: float = 0.0
    examples: int = 0
    seconds: float = 0.0


def default_home() -> Path:
    return Path(os.environ.get("SPRY_HOME") or Path.home() / ".local" / "share" / "spry")


def signing(store: Store, identity: Enrolled, url: str) -> Signing:
    """How a device signs its requests to a server."""
    key = store.key()
    if key is None:
        raise StoreError(f"{store.folder} lacks device.key, by which {identity.device} is known: enrol again")
    return Signing(identity.device, key, url)


class Store:
    """The folder for one server. Reading needs no lock: a file is always whole."""

    def __init__(self, home: Path, server: str, *, tell: Tell = silent) -> None:
        self.folder = home / server_folder(server)
        self.tell = tell

    @classmethod
    def only(cls, home: Path) -> Self:
        """That of the one server in `home`."""
        folders = sorted(path.parent for path in home.glob("*/identity.json"))
        if len(folders) != 1:
            several = f"several servers ({', '.join(f.name for f in folders)}): name one with --server"
            what = several if folders else "no server; take part in a round first (spry join)"
            raise StoreError(f"{home} holds {what}")
        store = cls(home, "")
        store.folder = folders[0]
        return store

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other clients out; the system lifts the lock when this process ends, however it ends."""
        make_folder(self.folder)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    f"another client uses {self.folder}; stop it, or give this one a folder of its own with --home"
                ) from None
            self._clean()
            yield

    def _clean(self) -> None:
        """Remove what a crash left half written, and bundles that no job uses any more."""
        for path in self.folder.rglob(TEMPORARY + "*"):
            path.unlink(missing_ok=True)
        used = {job.about.bundle for job in self.jobs() if job.about} | {
            task.bundle for task in (job.task() for job in self.jobs()) if task
        }
        for folder in (self.folder / "bundles").glob("*"):
            if folder.name not in used:
                shutil.rmtree(folder, ignore_errors=True)

    # --- who this device is ---

    def identity(self) -> Enrolled | None:
        return read_json(self.folder / "identity.json", Enrolled, self.tell)

    def key(self) -> str | None:
        """The device's own secret key."""
        file = self.folder / "device.key"
        return read_secret(file) if file.exists() else None

    def make_key(self) -> str:
        """The same, made at the first call: a repeated enrolment must not bring another."""
        key = self.key() or make()
        write(self.folder / "device.key", f"{SECRET}{key}\n".encode(), mode=PRIVATE)
        return key

    def publisher(self) -> str | None:
        """The key that bundles must be signed with. One that cannot be read is an error: none would trust anybody."""
        file = self.folder / "publisher.key"
        return read_public(str(file)) if file.exists() else None

    def pin(self, publisher: str) -> None:
        write(self.folder / "publisher.key", f"{publisher}\n".encode())

    def save_identity(self, identity: Enrolled) -> None:
        write(self.folder / "identity.json", msgspec.json.encode(identity), mode=PRIVATE)

    # --- bundles and jobs ---

    def bundle(self, sha256: str) -> Path:
        return self.folder / "bundles" / safe_name(sha256)

    def job(self, job: str) -> JobStore:
        return JobStore(self.folder / "jobs" / safe_name(job), self.tell)

    def jobs(self) -> list[JobStore]:
        """Those that the device knows, the one used last first."""
        folders = [folder for folder in (self.folder / "jobs").glob("*") if folder.is_dir()]
        folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        return [JobStore(folder, self.tell) for folder in folders]


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

    def begin(self, task: Task) -> None:
        """Take up a task; what was left of another one is dropped."""
        known = self.task()
        if known is None or known.id != task.id:
            self.finish()
        if known != task:
            write(self.folder / "task.json", msgspec.json.encode(task))

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
        """Where this task stood, trained on the same data."""
        saved = self._load("progress")
        if saved is None:
            return None
        mark, weights, optimizer = saved
        if (mark.task, mark.data, mark.bundle, mark.version) != (task.id, data, task.bundle, task.version):
            return None
        return Checkpoint(mark.step, mark.loss, mark.examples, mark.seconds, weights, optimizer)

    def save_update(self, tensors: Weights, report: Report) -> None:
        """Once it is on disk, training need not be repeated."""
        from safetensors.numpy import save

        data = save(tensors, {REPORT: msgspec.json.encode(report).decode()})
        write(self.folder / "update.safetensors", data)
        (self.folder / "progress.safetensors").unlink(missing_ok=True)

    def update(self) -> bytes | None:
        """The finished result of the task under way, as it is sent."""
        path = self.folder / "update.safetensors"
        return path.read_bytes() if path.is_file() and self.task() is not None else None

    # --- a sum that the result is added to ---

    def save_sum(self, kept: object) -> None:
        """What was drawn for it and told of it; secret until the task is forgotten."""
        write(self.folder / "sum.json", msgspec.json.encode(kept), mode=PRIVATE)

    def sum(self, kind: type[T]) -> T | None:
        return read_json(self.folder / "sum.json", kind, self.tell)

    # --- weights ---

    def save_weights(self, bundle: str, kept: Kept) -> None:
        self._save("weights", _Mark(bundle=bundle, version=kept.version), kept.weights, kept.optimizer)

    def weights(self, bundle: str) -> Kept | None:
        saved = self._load("weights")
        return None if saved is None or saved[0].bundle != bundle else Kept(saved[0].version, saved[1], saved[2])

    def save_personal(self, bundle: str, version: int, weights: Weights) -> None:
        self._save("personal", _Mark(bundle=bundle, version=version), weights, {})

    def personal(self, bundle: str) -> Kept | None:
        saved = self._load("personal")
        return None if saved is None or saved[0].bundle != bundle else Kept(saved[0].version, saved[1])

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
