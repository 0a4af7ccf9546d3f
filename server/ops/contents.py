"""The files that a database names: bundles of jobs, kept weights, updates of rounds that are not closed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, select

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from server.storage.blobs import Blobs
from server.storage.tables import bundles, jobs, rounds, tasks, versions

BLOBS, BUNDLES = "blobs", "bundles"


class File(NamedTuple):
    """A file of the data folder."""

    path: str
    """Below the data folder."""
    sha256: str
    bytes: int | None = None
    """Where it is known."""

    def is_whole(self, folder: Path) -> bool:
        path = folder / self.path
        return path.is_file() and self.bytes in (None, path.stat().st_size)


class Contents(NamedTuple):
    bundles: list[File]
    blobs: list[File]


def contents(connection: Connection, folder: Path) -> Contents:
    """What must be there for the database, as this transaction sees it, to be of use."""
    named = connection.execute(select(bundles.c.sha256).order_by(bundles.c.sha256)).scalars()
    of_bundles = [file for bundle in named for file in _of_bundle(folder, bundle)]
    blobs = Blobs(folder / BLOBS)
    of_blobs = [File(str(blobs.path(sha).relative_to(folder)), sha) for sha in sorted(_blobs(connection, blobs))]
    return Contents(of_bundles, of_blobs)


def _of_bundle(folder: Path, bundle: str) -> Iterator[File]:
    """The manifest and, where it is the one that the bundle is named by, what it lists."""
    top = f"{BUNDLES}/{bundle}"
    yield File(f"{top}/{FILE_NAME}", bundle)
    path = folder / top / FILE_NAME
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == bundle:
        for file in manifests.read(path).files:
            yield File(f"{top}/{file.path}", file.sha256, file.bytes)


def _blobs(connection: Connection, blobs: Blobs) -> set[str]:
    found: set[str | None] = set()
    for column in (versions.c.weights, versions.c.optimizer):
        found |= set(connection.execute(select(column)).scalars())
    settings = connection.execute(select(jobs.c.id, jobs.c.settings)).all()
    found |= {values.get("held_out") for _, values in settings}
    of_rounds = select(tasks.c.update).join(rounds, (rounds.c.job == tasks.c.job) & (rounds.c.number == tasks.c.round))
    accepted = of_rounds.where(tasks.c.state == "accepted")
    found |= set(connection.execute(accepted.where(rounds.c.state.in_(("open", "closing")))).scalars())
    kept = [job for job, values in settings if values.get("keep_updates")]
    later = {sha for sha in connection.execute(accepted.where(tasks.c.job.in_(kept))).scalars() if sha}
    return {sha for sha in found if sha} | {sha for sha in later if blobs.has(sha)}
