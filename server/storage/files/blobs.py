"""Keep files named by the sha256 of their content: updates, weights, held-out examples.

A file appears whole and on disk, or not at all; the same content is kept once. Where servers share a home for them
(`server.storage.files.shared`), a blob is there before anybody learns of it, and the folder keeps copies of what this
server reads.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from safetensors.numpy import load_file, save

from edge_client.arrays import Weights
from edge_client.bundle.folder import sha256 as hash_of
from edge_client.store.files import sync_folder
from server.errors import Refusal
from server.storage.files.shared import BlobStore

PARTIAL = ".partial-"
_LENT = ".lent-"
_LATER = 60.0


class Blobs:
    """A folder of such files, and the home that other servers read them from, where they have no folder in common."""

    def __init__(self, folder: Path, shared: BlobStore | None = None) -> None:
        self.folder = folder
        self._shared = shared
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def key(self, sha256: str) -> str:
        """Name a blob in the home that servers share."""
        return f"{self.folder.name}/{sha256[:2]}/{sha256}"

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file() if self._shared is None else self._shared.has(self.key(sha256))

    def partial(self) -> Path:
        """Return a new file to write a blob into, which `adopt` takes."""
        handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=self.folder)
        os.close(handle)
        return Path(name)

    def adopt(self, partial: Path, sha256: str) -> None:
        """Take a file written under `partial()`, whose content has this hash."""
        with partial.open("rb") as file:
            if self._shared is None:
                os.fsync(file.fileno())
            else:
                self._shared.put(self.key(sha256), file)
        self._place(partial, sha256)

    def _place(self, partial: Path, sha256: str) -> None:
        target = self.path(sha256)
        target.parent.mkdir(exist_ok=True)
        partial.replace(target)
        sync_folder(target.parent)

    def forget_partials(self, older: float) -> None:
        """Remove what uploads and evaluations left that a crash cut off, if untouched for so many seconds."""
        until = time.time() - older  # the files' own clock
        for partial in self.folder.glob(f"{PARTIAL}*"):
            with suppress(FileNotFoundError):  # it became a blob, or another worker removed it
                if partial.stat().st_mtime < until:
                    partial.unlink()
        for lent in self.folder.glob(f"{_LENT}*"):
            with suppress(FileNotFoundError):
                if lent.stat().st_mtime < until:
                    shutil.rmtree(lent, ignore_errors=True)
        for copy in self.folder.glob("??/*") if self._shared is not None else ():
            with suppress(FileNotFoundError):
                if copy.stat().st_mtime < until:  # whoever reads it again fetches it again
                    copy.unlink()

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
        """Return the path of a blob after its content was hashed again: disks lose and change what they hold."""
        path = self.path(sha256)
        if not self._is_whole(path, sha256) and not self._fetched(sha256):  # no fault of a device, which may ask again
            what = f"{path} is missing or damaged: put the file back from a backup"
            raise Refusal(503, "damaged", f"{what}; `spry doctor --data` looks for others", retry_after=_LATER)
        return path

    def _is_whole(self, path: Path, sha256: str) -> bool:
        if not path.is_file():
            return False
        if self._shared is not None:
            with suppress(FileNotFoundError):
                os.utime(path)  # copies that are read stay
        return hash_of(path) == sha256

    def _fetched(self, sha256: str) -> bool:
        """Copy a blob from the home that servers share; False where it is not there, or is another."""
        if self._shared is None:
            return False
        partial = self.partial()
        try:
            with partial.open("wb") as file:
                found = self._shared.fetch(self.key(sha256), file)
            if found and hash_of(partial) == sha256:
                self._place(partial, sha256)
                return True
        finally:
            partial.unlink(missing_ok=True)
        return False

    @contextmanager
    def lent(self, sha256: str) -> Generator[Path]:
        """Lend a file with a blob's content to a library that reads files, for as long as the block lasts.

        The blob's own may go meanwhile: where servers share a home it is a copy, which stays an hour after its use.
        """
        with tempfile.TemporaryDirectory(prefix=_LENT, dir=self.folder) as folder:
            file = Path(folder) / sha256
            path = self.whole(sha256)
            try:
                os.link(path, file)
            except OSError:  # a file system without second names
                shutil.copyfile(path, file)
            yield file

    def read(self, sha256: str) -> bytes:
        """Read a blob's content, hashed again."""
        return self.whole(sha256).read_bytes()

    def open(self, sha256: str) -> IO[bytes]:
        """Open a blob for reading, as it lies on the disk."""
        path = self.path(sha256)
        return (path if path.is_file() else self.whole(sha256)).open("rb")

    def tensors(self, sha256: str) -> Weights:
        return load_file(self.whole(sha256))

    def forget(self, sha256: str) -> None:
        if self._shared is not None:
            self._shared.delete(self.key(sha256))
        self.path(sha256).unlink(missing_ok=True)
