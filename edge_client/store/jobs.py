"""Keep a device's files for one server, so that no crash or reboot costs it more than a few steps.

    HOME/SERVER/identity.json                 the device's id and secret, for its user's eyes only
                device.key                    the key that it signs requests with instead of a secret
                publisher.key                 whose bundles alone are taken, where that is pinned
                bundles/SHA256/               a bundle's files, and what is there of those being downloaded;
                                              which runtimes gave right results (`tried`)
                refused.json                  which gave wrong ones for a bundle
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
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_client.errors import StoreError
from edge_client.events import Tell, silent
from edge_client.keys import SECRET, make, read_public, read_secret
from edge_client.wire.proofs import Signing
from edge_client.wire.protocol import Enrolled

from .files import PRIVATE, TEMPORARY, make_folder, read_json, safe_name, server_folder, write
from .job import JobStore

if TYPE_CHECKING:
    from typing_extensions import Self


def default_home() -> Path:
    return Path(os.environ.get("SPRY_HOME") or Path.home() / ".local" / "share" / "spry")


def signing(store: DeviceStore, identity: Enrolled, url: str) -> Signing:
    """Return how a device signs its requests to a server."""
    key = store.key()
    if key is None:
        raise StoreError(f"{store.folder} lacks device.key, by which {identity.device} is known: enrol again")
    return Signing(identity.device, key, url)


class DeviceStore:
    """The folder for one server. Reading needs no lock: a file is always whole."""

    def __init__(self, home: Path, server: str, *, tell: Tell = silent) -> None:
        self.folder = home / server_folder(server)
        self.tell = tell

    @classmethod
    def only(cls, home: Path) -> Self:
        """Return the store of the one server in `home`."""
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
        """Return the device's own secret key."""
        file = self.folder / "device.key"
        return read_secret(file) if file.exists() else None

    def make_key(self) -> str:
        """Return the device's own secret key, made at the first call: a repeated enrolment must not bring another."""
        key = self.key() or make()
        write(self.folder / "device.key", f"{SECRET}{key}\n".encode(), mode=PRIVATE)
        return key

    def publisher(self) -> str | None:
        """Return the key that bundles must be signed with. An unreadable one is an error: none would trust anybody."""
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
        """Return the jobs that the device knows, the one used last first."""
        folders = [folder for folder in (self.folder / "jobs").glob("*") if folder.is_dir()]
        folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        return [JobStore(folder, self.tell) for folder in folders]
