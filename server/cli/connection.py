"""An administrator's side of the HTTP API, for the commands and for scripts."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import httpx

from edge_client.bundle.manifest import FILE_NAME
from edge_client.bundle.signature import SIGNATURES
from edge_client.errors import SpryError
from edge_client.wire.addresses import checked_address, trusted
from server.names import ADMIN_TOKEN
from server.project.folder import Project
from server.text import printable

if TYPE_CHECKING:
    from typing_extensions import Self

TOKEN_VARIABLE = "SPRY_ADMIN_TOKEN"  # noqa: S105 -- a variable's name
SERVER_VARIABLE = "SPRY_SERVER"
DEFAULT_SERVER = "http://127.0.0.1:8000"
_CHUNK = 1 << 20
_TIMEOUT = httpx.Timeout(30.0, read=120.0)
_AWAY = 600.0
"""Seconds for which a server that was there is waited for."""
_PAUSE = 2.0
_PASSING = frozenset({502, 503, 504})
"""The statuses of proxies whose server is away for a moment."""


class AdminError(SpryError):
    """The server did not do what was asked; says why and what to do."""


class RefusedByServer(AdminError):
    """The server is there, and says why it does not do that."""


class NoAnswer(AdminError):
    """The server does not answer now; one that starts again may do so soon."""


class Access(NamedTuple):
    """Which server, and as whom."""

    url: str = DEFAULT_SERVER
    token: str = ""
    ca: Path | None = None

    @classmethod
    def of(cls, url: str | None, token: str | None, ca: Path | None, data: Path | None = None) -> Access:
        """Options first, then variables, then this folder's project; a server here keeps its token in its data."""
        named, token = url or os.environ.get(SERVER_VARIABLE), token or os.environ.get(TOKEN_VARIABLE)
        project = None if named and token else Project.around(Path.cwd())  # whoever says all needs no file to be right
        url = checked_address(named or (project.url if project else DEFAULT_SERVER))
        own = project.admin_token if project and url == project.url else None
        if data is not None:
            own = data / ADMIN_TOKEN
        token = token or _local_token(own)
        if ca is None and project and own and project.file.server.tls_cert:
            ca = project.path(project.file.server.tls_cert)
        if not token:
            raise AdminError(
                f"no administrator's token: there is no {own or _beside()}; give --admin-token, set {TOKEN_VARIABLE}, "
                "or run this beside the server's data folder"
            )
        if not (token.isascii() and token.isprintable()):
            raise AdminError("the administrator's token has characters that no token has; copy it again")
        return cls(url, token, ca)


def _local_token(own: Path | None) -> str:
    file = own or _beside()
    return file.read_text().strip() if file.is_file() and os.access(file, os.R_OK) else ""


def _beside() -> Path:
    """Return the token's file of a server that was started in this folder."""
    return Path(os.environ.get("SPRY_DATA_DIR", "spry-data")) / ADMIN_TOKEN


class Administrator:
    """Calls the API; a problem document becomes an AdminError."""

    def __init__(self, access: Access, transport: httpx.BaseTransport | None = None) -> None:
        self.url = access.url
        headers = {"Authorization": f"Bearer {access.token}"}
        self._http = httpx.Client(
            base_url=access.url,
            headers=headers,
            timeout=_TIMEOUT,
            verify=trusted(access.url, access.ca),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **parameters: Any) -> Any:
        return _json(self._call("GET", path, params=parameters))

    def post(self, path: str, body: Any = None) -> Any:
        return _json(self._call("POST", path, json=body))

    def patch(self, path: str, body: Any) -> None:
        self._call("PATCH", path, json=body)

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    def bytes(self, path: str, **parameters: Any) -> bytes:
        return self._call("GET", path, params=parameters).content

    def upload_bundle(self, path: Path, advance: Callable[[int, int], None] = lambda _sent, _total: None) -> str:
        """Send the files that the server lacks of a bundle; `advance` gets bytes sent and in all. Return its name."""
        from edge_client.bundle.folder import Bundle  # with numpy, which most commands have no use for

        bundle = Bundle.open(path)
        data = (bundle.folder / FILE_NAME).read_bytes()
        name = hashlib.sha256(data).hexdigest()
        self._call("PUT", f"/v1/bundles/{name}/{FILE_NAME}", content=data)
        signatures = bundle.folder / SIGNATURES
        if signatures.is_file():
            self._call("PUT", f"/v1/bundles/{name}/{SIGNATURES}", content=signatures.read_bytes())
        sizes = {file.path: file.bytes for file in bundle.manifest.files}
        missing: list[str] = self.get(f"/v1/bundles/{name}/missing")
        sent, total = 0, sum(sizes[file] for file in missing)
        for file in missing:
            with (bundle.folder / file).open("rb") as content:
                self._call("PUT", f"/v1/bundles/{name}/{file}", content=_chunks(content))
            sent += sizes[file]
            advance(sent, total)
        return name

    def upload_held_out(self, path: Path) -> str:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise AdminError(f"held-out examples {path} cannot be read: {error.strerror}; give a JSONL file") from None
        name = hashlib.sha256(data).hexdigest()
        self._call("PUT", f"/v1/held-out/{name}", content=data)
        return name

    def followed(self, job: str, away: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """Yield a job's state whenever it changes, until it has ended.

        A server that starts again is waited for; `away` is called once each time that it is not there.
        """
        state, since = "", 0.0
        while state != "ended":
            try:
                with self._events(job) as events:
                    for text in events:
                        standing: dict[str, Any] = json.loads(text)
                        state, since = standing["state"], 0.0
                        yield standing
            except NoAnswer:
                if not state or (since and time.monotonic() > since + _AWAY):
                    raise
                if not since:
                    since = time.monotonic()
                    away()
            if state != "ended":
                time.sleep(_PAUSE)

    @contextmanager
    def _events(self, job: str) -> Generator[Iterator[str], None, None]:
        """Yield the data of a job's events, one JSON text each."""
        timeout = httpx.Timeout(30.0, read=60.0)
        try:
            with self._http.stream("GET", f"/v1/jobs/{part(job)}/events", timeout=timeout) as response:
                if response.is_error:
                    response.read()
                    raise _problem(response)
                yield (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        except httpx.TransportError as error:
            raise self._silence(error) from None

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._silence(error) from None
        if not response.is_success:
            raise _problem(response)
        return response

    def _silence(self, error: httpx.TransportError) -> AdminError:
        reason = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            return AdminError(
                f"{self.url} shows a certificate that is not trusted here ({reason}); give the file of the authority "
                "that signed it with --ca"
            )
        return NoAnswer(f"no answer from {self.url} ({reason}); is the server running, and is --server right?")


def part(name: str) -> str:
    """Quote a name as a part of a path, whatever characters it has."""
    return quote(name, safe="")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise AdminError(f"{response.url} gives no answer of a spry server; is --server right?") from None


def _chunks(file: Any) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _problem(response: httpx.Response) -> AdminError:
    """Read a spry server's reason of a refusal; other servers, and paths that it has not, get words of ours."""
    try:
        problem = response.json()
        if response.status_code == 401:
            where = str(response.url.copy_with(path="/", query=None)).rstrip("/")
            return AdminError(f"{where} does not know this token; give one that its administrator made (--admin-token)")
        if problem["code"] != "http":
            return RefusedByServer(printable(str(problem["detail"])))
    except (ValueError, KeyError, TypeError):
        pass
    answered = f"{response.url} answered {response.status_code} {response.reason_phrase}"
    kind = NoAnswer if response.status_code in _PASSING else AdminError
    return kind(f"{answered}, not as a spry server does; is --server right?")
