"""The files that a database names: bundles of jobs, kept weights, updates of rounds that are not closed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from server.storage.files import references
from server.storage.files.blobs import Blobs

BLOBS, BUNDLES = "blobs", "bundles"


class File(NamedTuple):
    """A file of the data folder."""

    path: str
    """Below the data folder."""
    sha256: str
    bytes: int | None = None
    """The size, where it is known."""

    def is_whole(self, folder: Path) -> bool:
        path = folder / self.path
        return path.is_file() and self.bytes in (None, path.stat().st_size)


class Contents(NamedTuple):
    bundles: list[File]
    blobs: list[File]


def contents(connection: Connection, folder: Path) -> Contents:
    """List the files that a database needs, as this transaction sees it."""
    of_bundles = [file for bundle in references.bundle_names(connection) for file in _of_bundle(folder, bundle)]
    blobs = Blobs(folder / BLOBS)
    kept = {sha for sha in references.kept_updates(connection) if blobs.has(sha)}
    named = references.needed_blobs(connection) | kept
    of_blobs = [File(str(blobs.path(sha).relative_to(folder)), sha) for sha in sorted(named)]
    return Contents(of_bundles, of_blobs)


def _of_bundle(folder: Path, bundle: str) -> Iterator[File]:
    """Yield the manifest and, if its hash is the bundle's name, the files that it lists."""
    top = f"{BUNDLES}/{bundle}"
    yield File(f"{top}/{FILE_NAME}", bundle)
    path = folder / top / FILE_NAME
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == bundle:
        for file in manifests.read(path).files:
            yield File(f"{top}/{file.path}", file.sha256, file.bytes)
