"""uvicorn's connections, watched: bounded in time, in bytes and in number.

uvicorn waits for the rest of a request, and for an answer to be taken, for ever. It has no place for a bound, and who
runs `uvicorn server.app:app` could not be given a protocol of ours; so its own protocols are watched, in each process
when it starts. They also learn here who is at the other end, which uvicorn forgets where it believes a header.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary, ref

from starlette.types import ASGIApp, Receive, Scope, Send

from server.addresses import PEER
from server.web.standing import BEING_ANSWERED, OpenConnections, Room, disconnect, queued

_CONNECTION = "spry.connection"
_PROTOCOLS = (
    ("uvicorn.protocols.http.httptools_impl", "HttpToolsProtocol"),
    ("uvicorn.protocols.http.h11_impl", "H11Protocol"),
)
_QUEUED = 4
"""Requests that may wait on a connection for the answer to one before them."""
_SHORT = "/v1/", "/healthz", "/readyz"
"""The paths at which strangers get a short answer."""

_standing: WeakKeyDictionary[asyncio.AbstractEventLoop, OpenConnections] = WeakKeyDictionary()
_observed: set[type] = set()


def guard(seconds: float, proxies: str) -> None:
    """Give up connections of this loop's servers whose other end does nothing for so many seconds, or are too many."""
    loop = asyncio.get_running_loop()
    _standing[loop] = OpenConnections(loop, seconds, Room.of_process(), proxies)
    for module, name in _PROTOCOLS:
        try:
            kind = getattr(import_module(module), name)
        except ImportError:  # httptools is for machines that have it
            continue
        if kind not in _observed:
            _observed.add(kind)
            _observe(kind)


class InTurn:
    """Lets requests for pages, which anybody may read, wait for their turn."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(_SHORT):
            connection, standing = _of(scope)
            if standing is not None and not await standing.turn(connection):
                return
        await self._app(scope, receive, send)


def proved(scope: Scope) -> None:
    """Note that who sent a request has shown a secret or a signature; called on the loop of the server."""
    connection, standing = _of(scope)
    if standing is not None:
        standing.proved(connection)


def _of(scope: Scope) -> tuple[Any, OpenConnections | None]:
    known = scope.get("state", {}).get(_CONNECTION)
    connection = known() if known else None
    return connection, None if connection is None else _standing_of(connection)


def _standing_of(connection: Any) -> OpenConnections | None:
    return _standing.get(connection.loop)


def _observe(kind: Any) -> None:
    _observe_connecting(kind)
    _observe_reading(kind)
    _observe_writing(kind)


def _observe_connecting(kind: Any) -> None:
    made, lost, ended = kind.connection_made, kind.connection_lost, kind.eof_received

    def connection_made(self: Any, transport: asyncio.Transport) -> None:
        made(self, transport)
        self.app_state = {**self.app_state, PEER: self.client, _CONNECTION: ref(self)}
        self.ws_protocol_class = None  # nothing here speaks it, and such a connection would be watched no more
        if standing := _standing_of(self):
            standing.made(self)

    def connection_lost(self: Any, error: Exception | None) -> None:
        if standing := _standing_of(self):
            standing.lost(self)
        lost(self, error)
        disconnect(self)
        for cycle, _ in getattr(self, "pipeline", ()):  # no circles: a flood would have to wait for the collector
            cycle.on_response = None

    def eof_received(self: Any) -> Any:
        if standing := _standing_of(self):
            standing.half_closed(self)
        return ended(self)

    kind.connection_made, kind.connection_lost, kind.eof_received = connection_made, connection_lost, eof_received


def _observe_reading(kind: Any) -> None:
    received = kind.data_received
    body = getattr(kind, "on_body", None)  # h11 has none, bounds by itself what it holds, and takes one at a time

    def data_received(self: Any, data: bytes) -> None:
        before, standing = self.cycle, _standing_of(self)
        if standing and body is not None:
            standing.came(self, len(data))
        received(self, data)
        if standing:
            standing.parsed(self, before)

    kind.data_received = data_received
    if body is None:
        return
    headed = kind.on_headers_complete

    def on_body(self: Any, content: bytes) -> None:
        if standing := _standing_of(self):
            standing.body(self, len(content))
        body(self, content)

    def on_headers_complete(self: Any) -> None:
        if queued(self) >= _QUEUED:
            disconnect(self)
            self.transport.abort()
            raise ValueError("too many requests wait for an answer")  # the parser stops
        before = self.cycle
        headed(self)
        if queued(self) == 1:
            setattr(self, BEING_ANSWERED, before)

    kind.on_body, kind.on_headers_complete = on_body, on_headers_complete


def _observe_writing(kind: Any) -> None:
    paused, resumed, answered = kind.pause_writing, kind.resume_writing, kind.on_response_complete

    def pause_writing(self: Any) -> None:
        paused(self)
        if standing := _standing_of(self):
            standing.stalls(self)

    def resume_writing(self: Any) -> None:
        resumed(self)
        if standing := _standing_of(self):
            standing.flows(self)

    def on_response_complete(self: Any) -> None:
        setattr(self, BEING_ANSWERED, self.pipeline[-1][0] if queued(self) else None)
        answered(self)
        if queued(self):
            self.flow.pause_reading()  # one after the other
        if standing := _standing_of(self):
            standing.answered(self)

    kind.pause_writing, kind.resume_writing = pause_writing, resume_writing
    kind.on_response_complete = on_response_complete
