"""The archive of a backup: a tar file whose first member lists the others with their hashes."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from edge_client.bundle.folder import CHUNK, safe_path
from edge_client.errors import SpryError
from edge_client.store.files import sync_folder

INDEX = "spry-backup.json"
FORMAT = 1
DUMP = "database.dump"
"""PostgreSQL's, for `pg_restore`."""
_PRIVATE, _SHARED = 0o600, 0o644
_LARGEST_INDEX = 1 << 28
_INDEX_HASH = "SPRY.sha256"
"""A header of the index, which lists every hash but its own."""
Advance = Callable[[int, int], None]


class ArchiveError(SpryError):
    """An archive cannot be written or is not what a backup wrote."""


class Entry(msgspec.Struct, frozen=True):
    path: str
    sha256: str
    bytes: int


class Index(msgspec.Struct, frozen=True):
    format: int
    spry: str
    """The version that wrote it."""
    created: float
    database: str
    """sqlite or postgresql."""
    files: list[Entry]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)


def write(out: Path, folder: Path, index: Index, advance: Advance) -> None:
    """Write the files of the index, each compared with its hash on the way; readable by this user alone."""
    handle, name = tempfile.mkstemp(prefix=f".{out.name}.partial-", dir=out.absolute().parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            data = msgspec.json.encode(index)
            headers = {_INDEX_HASH: hashlib.sha256(data).hexdigest()}
            _add(tar, INDEX, io.BytesIO(data), len(data), index.created, headers)
            done = 0
            for entry in index.files:
                with (folder / entry.path).open("rb") as content:
                    hashing = _Hashing(content, lambda count, before=done: advance(before + count, index.bytes))
                    _add(tar, entry.path, hashing, entry.bytes, index.created)
                if hashing.hexdigest() != entry.sha256:
                    raise ArchiveError(
                        f"{entry.path} on the server's disk is not what its hash says; the disk may be failing: "
                        "restore an earlier backup, or delete a bundle's file and upload the bundle again"
                    )
                done += entry.bytes
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(out.absolute().parent)


def unpack(archive: Path, folder: Path, advance: Advance) -> Index:
    """Make `folder` of an archive; it appears whole or not at all, and only with the hashes that the index lists."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArchiveError(f"{folder} holds something already; name a new folder with --data")
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    mounted = folder.is_dir()  # an empty folder may be a container's volume, which cannot be replaced
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder if mounted else parent))
    try:
        with tarfile.open(archive, mode="r:") as tar:
            index = _index(archive, tar)
            _extract(archive, tar, index, partial, advance)
        os.sync()
        if mounted:
            _fill(folder, partial, last=index.files[0].path)
        else:
            partial.rename(folder)
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveError(f"{archive} is damaged ({error}); copy it again, or take another backup") from None
    except OSError as error:
        if error.filename and Path(error.filename) == archive:
            raise ArchiveError(f"{archive} cannot be read ({error.strerror}); name a file of `spry backup`") from None
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync_folder(parent)
    return index


def _fill(folder: Path, partial: Path, last: str) -> None:
    """Move files into the folder, the database last: without it nothing there is of use."""
    for path in sorted(partial.iterdir(), key=lambda path: path.name == last):
        path.rename(folder / path.name)


class _Hashing(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, content: IO[bytes], advance: Callable[[int], None]) -> None:
        super().__init__()
        self._content = content
        self._advance = advance
        self._sha256 = hashlib.sha256()
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        data = self._content.read(size)
        self._sha256.update(data)
        self._read += len(data)
        self._advance(self._read)
        return data

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def _add(
    tar: tarfile.TarFile,
    name: str,
    content: IO[bytes] | _Hashing,
    size: int,
    moment: float,
    headers: dict[str, str] | None = None,
) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, moment
    member.mode = _mode(name)
    member.pax_headers = headers or {}
    tar.addfile(member, content)


def _mode(name: str) -> int:
    return _SHARED if "/" in name else _PRIVATE


def _index(archive: Path, tar: tarfile.TarFile) -> Index:
    first = tar.next()
    content = tar.extractfile(first) if first and first.name == INDEX and first.size < _LARGEST_INDEX else None
    if first is None or content is None:
        raise ArchiveError(f"{archive} is no backup: its first file is not {INDEX}; name a file of `spry backup`")
    data = content.read()
    digest = hashlib.sha256(data).hexdigest()
    if first.pax_headers.get(_INDEX_HASH, digest) != digest:  # archives of earlier versions have none
        raise ArchiveError(
            f"{archive} is damaged: {first.name} is not what its hash says; copy it again, or take another backup"
        )
    try:
        index = msgspec.json.decode(data, type=Index)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{archive} is damaged: {INDEX} cannot be read ({error}); take another backup") from None
    if index.format > FORMAT:
        raise ArchiveError(f"{archive} has format {index.format}, this spry knows {FORMAT}: upgrade spry")
    return index


def _extract(archive: Path, tar: tarfile.TarFile, index: Index, folder: Path, advance: Advance) -> None:
    wanted = {entry.path: entry for entry in index.files}
    done, total = 0, index.bytes
    for member in tar:
        if member.name == INDEX:
            continue
        entry = wanted.pop(member.name, None)
        content = tar.extractfile(member)
        if entry is None or content is None:
            raise ArchiveError(f"{archive} holds {member.name}, which its index does not list; take another backup")
        path = folder / safe_path(entry.path, archive)
        path.parent.mkdir(parents=True, exist_ok=True)
        hashing = _Hashing(content, lambda count, before=done: advance(before + count, total))
        with open(path, "xb", opener=_private if "/" not in entry.path else None) as file:
            shutil.copyfileobj(hashing, file, CHUNK)
        if hashing.hexdigest() != entry.sha256:
            raise ArchiveError(
                f"{archive} is damaged: {entry.path} is not what its hash says; copy it again, or take another backup"
            )
        done += entry.bytes
    if wanted:
        raise ArchiveError(f"{archive} is cut short: {min(wanted)} is missing; copy it again, or take another backup")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE)
