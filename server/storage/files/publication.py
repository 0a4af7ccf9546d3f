"""Publish the weights of each version to a target that mirrors show: a folder, an address, or a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Protocol

import httpx

from edge_client.store.files import write
from server.storage.files.shared import S3, S3Blobs, StoreAway

SETTING = "SPRY_PUBLISH_WEIGHTS"
_SECONDS = 60.0


class PublicationTarget(Protocol):
    """Takes files by a key. What fails with an `OSError` may be tried again."""

    @property
    def name(self) -> str:
        """The name in the settings."""
        ...

    def put(self, key: str, source: IO[bytes]) -> None:
        """Put a file there, whole."""
        ...

    def delete(self, key: str) -> None:
        """Remove a file, if it is there."""
        ...


def open_target(name: str) -> PublicationTarget | None:
    """Open the target that the settings name; None where weights stay with the server."""
    if not name:
        return None
    if name.startswith(S3):
        return S3Blobs(name, SETTING)
    return WebTarget(name) if "://" in name else FolderTarget(name)


class FolderTarget:
    """A folder that a web server shows."""

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, key: str, source: IO[bytes]) -> None:
        path = Path(self.name) / key
        path.parent.mkdir(parents=True, exist_ok=True)  # a web server has a user of its own: not as private as ours
        write(path, source.read())

    def delete(self, key: str) -> None:
        (Path(self.name) / key).unlink(missing_ok=True)


class WebTarget:
    """An address that takes PUT and DELETE, as WebDAV does; a password for it is taken from ~/.netrc."""

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, key: str, source: IO[bytes]) -> None:
        self._ask("PUT", key, source.read())

    def delete(self, key: str) -> None:
        self._ask("DELETE", key, None, gone=(httpx.codes.NOT_FOUND, httpx.codes.GONE))

    def _ask(self, method: str, key: str, content: bytes | None, gone: tuple[int, ...] = ()) -> None:
        try:
            answer = httpx.request(method, f"{self.name}/{key}", content=content, timeout=_SECONDS)
        except httpx.HTTPError as error:
            raise _away(self.name, str(error) or type(error).__name__) from None
        if not answer.is_success and answer.status_code not in gone:
            raise _away(self.name, f"{method} is answered {answer.status_code} {answer.reason_phrase}")


def _away(name: str, why: str) -> StoreAway:
    return StoreAway(f"{name} does not take weights: {why}")
