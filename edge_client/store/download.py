"""A bundle's files, from mirrors or the server: only those that a runtime needs, resumed where they were cut.

Each is checked before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

import httpx

from edge_client.bundle import manifest as manifests
from edge_client.bundle import signature
from edge_client.bundle.folder import Bundle, files_of, safe_path, sha256
from edge_client.bundle.manifest import FILE_NAME, FileSpec, Manifest
from edge_client.errors import BadAnswer, BundleError, ServerError, StoreError
from edge_client.events import Event, Tell, silent
from edge_client.wire.answers import Read, body_of, pieces
from edge_client.wire.server import Server

from .files import make_folder, write
from .mirrors import FAILURES, Mirrors, quick_pieces

PARTIAL = ".partial"
MEGABYTE = 1e6
_TELL = "tell its operator: the file or a proxy in between is broken"


def fetch(
    server: Server,
    bundle: str,
    runtime: str,
    folder: Path,
    *,
    publisher: str | None = None,
    mirrors: Sequence[str] = (),
    tell: Tell = silent,
) -> Bundle:
    """Download the bundle with the programs of one runtime into `folder`, without the files that are there already.

    Where a publisher's key is given, nothing but the manifest is downloaded before its signature was found right.
    Mirrors are asked first; what none gives as it should be comes from the server, as signatures do: they may change.
    """
    with Mirrors(mirrors, ca=server.ca, tell=tell) as places:
        return _fetch(server, places, bundle, runtime, folder, publisher, tell)


def _fetch(
    server: Server, mirrors: Mirrors, bundle: str, runtime: str, folder: Path, publisher: str | None, tell: Tell
) -> Bundle:
    manifest = fetch_manifest(server, bundle, folder, mirrors)
    if publisher is not None:
        _check_publisher(server, bundle, folder, publisher)
    if runtime not in manifest.runtimes:
        offered = ", ".join(manifest.runtimes) or "none"
        raise BundleError(f"the job's bundle has no programs for {runtime}; it has {offered}")
    missing = [file for file in files_of(manifest, runtime) if not _is_there(folder, file)]
    if missing:
        _download(server, mirrors, bundle, missing, folder, tell)
    return Bundle(folder, manifest)


def fetch_manifest(server: Server, bundle: str, folder: Path, mirrors: Mirrors) -> Manifest:
    """Download the manifest, whose own hash is the bundle's name: it vouches for every other file."""
    path = folder / FILE_NAME
    if path.is_file() and sha256(path) == bundle:
        return manifests.read(path)

    def once() -> bytes:
        with server.file(bundle, FILE_NAME) as response:
            return body_of(response, manifests.LARGEST)

    data = mirrors.whole(bundle, FILE_NAME, bundle, manifests.LARGEST)
    if data is None:
        data = server.repeat(once)
        if hashlib.sha256(data).hexdigest() != bundle:
            what = f"{server.url} gives another manifest than that of the bundle {bundle[:12]}…"
            raise BadAnswer(f"{what}; {_TELL}", status=200)
    manifest = manifests.parse(data, f"{server.url}: {FILE_NAME}")
    write(path, data)
    return manifest


def _check_publisher(server: Server, bundle: str, folder: Path, publisher: str) -> None:
    """Check the publisher; a wrong signature is asked for again: a bundle may be signed after its download."""
    try:
        signature.check_folder(folder, publisher)
    except BundleError:
        signatures = _fetch_signatures(server, bundle)
        signature.check((folder / FILE_NAME).read_bytes(), signatures, publisher)
        write(folder / signature.SIGNATURES, signatures or b"")


def _fetch_signatures(server: Server, bundle: str) -> bytes | None:
    def once() -> bytes:
        with server.file(bundle, signature.SIGNATURES) as response:
            return body_of(response, signature.LARGEST)

    try:
        return server.repeat(once)
    except ServerError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise


def _is_there(folder: Path, file: FileSpec) -> bool:
    """Tell whether a file is there; it gets its name only after its hash was found right, so its size suffices."""
    path = folder / safe_path(file.path, folder)
    return path.is_file() and path.stat().st_size == file.bytes


def _download(server: Server, mirrors: Mirrors, bundle: str, files: list[FileSpec], folder: Path, tell: Tell) -> None:
    partial = sum(_size(_partial(folder, file)) for file in files)
    needed = sum(file.bytes for file in files) - partial
    make_folder(folder)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _full(folder, needed, free)
    done, total = partial, needed + partial
    for file in files:
        message = f"downloading the bundle: {done / MEGABYTE:.1f} of {total / MEGABYTE:.1f} MB"
        tell(Event("download", message, {"bytes": done, "total": total, "file": file.path}))
        _download_file(server, mirrors, bundle, file, folder)
        done += file.bytes
    tell(Event("download", f"the bundle is complete ({total / MEGABYTE:.1f} MB)", {"bytes": total, "total": total}))


def _download_file(server: Server, mirrors: Mirrors, bundle: str, file: FileSpec, folder: Path) -> None:
    target, partial = folder / safe_path(file.path, folder), _partial(folder, file)
    make_folder(target.parent)
    if partial.is_file() and _size(partial) >= file.bytes and sha256(partial) != file.sha256:
        partial.unlink()  # what was left of a damaged download is no fault of who is asked next
    try:
        if not _take_from_mirrors(mirrors, bundle, file, partial):
            _take_from_server(server, bundle, file, partial)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(folder).free
        raise _full(folder, file.bytes - _size(partial), free) from None
    partial.replace(target)


def _take_from_mirrors(mirrors: Mirrors, bundle: str, file: FileSpec, partial: Path) -> bool:
    """Take a file from a mirror; False if none has it right. A correct part of a failed download is kept."""
    for address in mirrors:
        try:
            if _size(partial) < file.bytes or not file.bytes:
                with mirrors.file(address, bundle, file.path, _size(partial)) as response:
                    _receive(response, file, partial, quick_pieces)
        except FAILURES as error:
            mirrors.leave_out(address, error)
            continue
        if sha256(partial) == file.sha256:
            return True
        partial.unlink()
        mirrors.leave_out(address, f"it gives a damaged {file.path}")
    return False


def _take_from_server(server: Server, bundle: str, file: FileSpec, partial: Path) -> None:
    def once() -> None:
        with server.file(bundle, file.path, min(_size(partial), file.bytes)) as response:
            _receive(response, file, partial)

    for last in (False, True):
        if _size(partial) < file.bytes or not file.bytes:
            server.repeat(once)
        if sha256(partial) == file.sha256:
            return
        partial.unlink()  # its beginning may be of a damaged download: once more from the start
        if last:
            raise BundleError(f"{server.url} gives a damaged {file.path}; tell its operator to export the bundle again")


def _receive(response: httpx.Response, file: FileSpec, partial: Path, read: Read = pieces) -> None:
    """Append what is missing; whatever arrives is kept, whenever the connection ends."""
    start = min(_size(partial), file.bytes)
    if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        partial.unlink(missing_ok=True)
        raise httpx.RemoteProtocolError("the file cannot be resumed; starting again")
    start = start if _starts_at(response, start) else 0
    with partial.open("ab") as target:
        target.truncate(start)
        for part in read(response):
            start += len(part)
            if start > file.bytes:
                raise BadAnswer(f"{response.url} is longer than the manifest says; {_TELL}", status=200)
            target.write(part)
    if start < file.bytes:
        raise httpx.RemoteProtocolError(f"{file.path} ended after {start} of {file.bytes} bytes")


def _starts_at(response: httpx.Response, start: int) -> bool:
    """Tell whether an answer holds the rest; a server may send the whole file instead."""
    if response.status_code != HTTPStatus.PARTIAL_CONTENT:
        return start == 0
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != start:
        raise BadAnswer(f"{response.url} answers with another range than was asked for; {_TELL}", status=200)
    return True


def _partial(folder: Path, file: FileSpec) -> Path:
    path = folder / safe_path(file.path, folder)
    return path.with_name(path.name + PARTIAL)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _full(folder: Path, needed: int, free: int) -> StoreError:
    return StoreError(
        f"the disk of {folder} is full: {needed / MEGABYTE:.1f} MB are needed, {free / MEGABYTE:.1f} MB are free; make "
        "room or give another folder with --home (what was downloaded is kept)"
    )
