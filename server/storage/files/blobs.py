"""Files named by the sha256 of their content: updates, weights, held-out examples.

A file appears whole and on disk, or not at all; the same content is kept once.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from safetensors.numpy import load_file, save

from edge_client.arrays import Weights
from edge_client.bundle.folder import sha256 as hash_of
from edge_client.store.files import sync_folder
from server.errors import Refusal

PARTIAL = ".partial-"
_LATER = 60.0


class Blobs:
    """A folder of such files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def partial(self) -> Path:
        """A place to write what becomes a blob by `adopt`."""
        handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=self.folder)
        os.close(handle)
        return Path(name)

    def adopt(self, partial: Path, sha256: str) -> None:
        """Take a file written under `partial()`, whose content has this hash."""
        target = self.path(sha256)
        target.parent.mkdir(exist_ok=True)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
        sync_folder(target.parent)

    def forget_partials(self, older: float) -> None:
        """Remove what uploads left that a crash cut off, and that nobody has written to for so many seconds."""
        until = time.time() - older  # the files' own clock
        for partial in self.folder.glob(f"{PARTIAL}*"):
            with suppress(FileNotFoundError):  # it became a blob, or another worker removed it
                if partial.stat().st_mtime < until:
                    partial.unlink()

    def put(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        if not self.has(sha256):
            partial = self.partial()
            try:
                partial.write_bytes(content)
                self.adopt(partial, sha256)
            finally:
                partial.unlink(missing_ok=True)
        return sha256

    def put_tensors(self, tensors: Weights) -> str:
        return self.put(save(dict(sorted(tensors.items()))))

    def whole(self, sha256: str) -> Path:
        """Where it is, after its content was hashed again: disks lose and change what they hold."""
        path = self.path(sha256)
        if not path.is_file() or hash_of(path) != sha256:  # no fault of a device, which may ask again
            what = f"{path} is missing or damaged: put the file back from a backup"
            raise Refusal(503, "damaged", f"{what}; `spry doctor --data` looks for others", retry_after=_LATER)
        return path

    def tensors(self, sha256: str) -> Weights:
        return load_file(self.whole(sha256))

    def forget(self, sha256: str) -> None:
        self.path(sha256).unlink(missing_ok=True)
