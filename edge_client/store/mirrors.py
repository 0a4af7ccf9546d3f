"""Static places that hold a server's bundles and weights, so that a large fleet does not fetch all from the server.

A mirror is an address below which each bundle stands as a folder of its sha256: `https://cdn.example.org/SHA256/…`, and
the weights of a version as `weights/SHA256`. It is trusted with nothing: a device sends it no secret, takes from it
only what has the hash that the server told, and the size that the bundle's manifest says, and goes to the next mirror,
in the end to the server, whatever else a mirror does.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from edge_client import __version__
from edge_client.errors import ServerError, SpryError
from edge_client.events import Event, Tell, silent
from edge_client.wire.addresses import checked_mirror, trusted
from edge_client.wire.answers import body_of, pieces

if TYPE_CHECKING:
    from typing_extensions import Self

SLOWEST = 16_384
"""Bytes a second that a mirror gives at least, in the mean since it was asked."""
PATIENCE = 10.0
"""Seconds for connecting, between two pieces of an answer, and until it may be called slow."""
WEIGHTS = "weights"
"""The folder of versions' weights."""
FAILURES = (httpx.HTTPError, ServerError)
"""The errors for which a mirror is left out."""


class Mirrors:
    """The mirrors of one download, in an order of this device's own: a fleet is spread over them.

    Args:
        addresses: as the server listed them.
        ca: a file with the certificates to trust instead of the system's.
        tell: takes the events of mirrors that are left out.
    """

    def __init__(self, addresses: Sequence[str], *, ca: Path | None = None, tell: Tell = silent) -> None:
        self._tell = tell
        self._ca = ca
        self._clients: dict[str, httpx.Client] = {}
        self._left = [checked for address in addresses if (checked := self._checked(address)) is not None]
        random.shuffle(self._left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def __iter__(self) -> Iterator[str]:
        """Yield the mirror that is asked next, as long as it gives what it should."""
        while self._left:
            address = self._left[0]
            yield address
            if self._left[:1] == [address]:
                return

    def leave_out(self, address: str, why: object) -> None:
        """Ask this one for nothing more of the download."""
        self._left.remove(address)
        self._warn(f"the mirror {address} is left out: {str(why) or type(why).__name__}")

    def _checked(self, address: str) -> str | None:
        try:
            return checked_mirror(address)
        except SpryError as error:
            self._warn(str(error))
            return None

    def _warn(self, message: str) -> None:
        self._tell(Event("warning", message))

    def whole(self, folder: str, path: str, sha256: str, most: int) -> bytes | None:
        """Fetch a small file whose hash is known, of so many bytes at most; None where no mirror gives it."""
        for address in self:
            try:
                with self.file(address, folder, path) as response:
                    data = body_of(response, most, quick_pieces)
            except FAILURES as error:
                self.leave_out(address, error)
                continue
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
            self.leave_out(address, f"it gives a damaged {path}")
        return None

    @contextmanager
    def file(self, address: str, folder: str, path: str, start: int = 0) -> Generator[httpx.Response]:
        """Yield a file of a bundle's folder from some byte on, to be read in pieces; 206 if it does start there."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._client(address).stream("GET", f"{address}/{folder}/{quote(path)}", headers=headers) as response:
            if response.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                what = f"{response.url} answers {response.status_code} {response.reason_phrase}"
                raise ServerError(what, status=response.status_code)
            yield response

    def _client(self, address: str) -> httpx.Client:
        if address not in self._clients:
            self._clients[address] = httpx.Client(
                verify=trusted(address, self._ca),
                timeout=PATIENCE,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none is kept
                headers={"User-Agent": f"spry/{__version__}", "Accept-Encoding": "identity"},
            )
        return self._clients[address]


def quick_pieces(response: httpx.Response) -> Iterator[bytes]:
    """Yield an answer's pieces as they arrive, as long as it is not too slow."""
    began, size = time.monotonic(), 0
    for part in pieces(response):
        yield part
        size += len(part)
        took = time.monotonic() - began
        if took > PATIENCE and size < SLOWEST * took:
            raise httpx.ReadTimeout(f"{response.url} gives {size / took:.0f} bytes a second")
