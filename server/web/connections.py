"""Connections on which no request comes to its end: bounded in time, in bytes and in number.

uvicorn waits for the rest of a request for ever, and keeps of its head what comes. It has no place for a bound, and who
runs `uvicorn server.app:app` could not be given a protocol of ours; so its own protocols are watched, in each process
when it starts. They also learn here who is at the other end, which uvicorn forgets where it believes a header.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from server.addresses import PEER

_PROTOCOLS = (
    ("uvicorn.protocols.http.httptools_impl", "HttpToolsProtocol"),
    ("uvicorn.protocols.http.h11_impl", "H11Protocol"),
)
_HEAD = 32 << 10
"""Bytes of a head, or of what frames a body, that a connection may hold."""
_DISCARDED = 1 << 20
"""Bytes of a body that are read away after its answer, so that who sends it comes to read the answer."""
_MOST = 256
"""Connections that wait for a request at once; one more, and the oldest goes."""
_FRAMING = 8
"""Bytes that frame a byte of a body at most, in chunks of one."""


class _Arrival:
    """What has come on one connection."""

    __slots__ = ("discarded", "held", "timer")

    def __init__(self) -> None:
        self.held = 0
        self.discarded = 0
        self.timer: asyncio.TimerHandle | None = None


class _Watch:
    """All connections of this process."""

    def __init__(self) -> None:
        self.seconds = 15.0
        self.kinds: set[type] = set()
        self._all: dict[Any, _Arrival] = {}
        self._waiting: dict[Any, None] = {}  # the oldest first

    def made(self, connection: Any) -> None:
        connection.app_state = {**connection.app_state, PEER: connection.client}
        self._all[connection] = _Arrival()
        self._wait(connection)

    def came(self, connection: Any, size: int) -> None:
        if arrival := self._all.get(connection):
            arrival.held += size

    def body(self, connection: Any, size: int) -> None:
        if arrival := self._all.get(connection):
            arrival.held = max(0, arrival.held - _FRAMING * size)
            if connection.cycle.response_complete:
                arrival.discarded += size

    def parsed(self, connection: Any, before: Any) -> None:
        """After uvicorn looked at what came: a head is complete, or waited for."""
        arrival = self._all.get(connection)
        if arrival is None:
            return
        if connection.cycle is not before:
            arrival.held = arrival.discarded = 0
            self._settle(connection)
        elif before is None or before.response_complete:
            self._wait(connection)
        if arrival.held > _HEAD or arrival.discarded > _DISCARDED:
            connection.transport.abort()

    def lost(self, connection: Any) -> None:
        self._settle(connection)
        self._all.pop(connection, None)

    def _wait(self, connection: Any) -> None:
        if connection in self._waiting:
            return
        self._waiting[connection] = None
        self._all[connection].timer = connection.loop.call_later(self.seconds, connection.transport.abort)
        if len(self._waiting) > _MOST:
            oldest = next(iter(self._waiting))
            self._settle(oldest)
            oldest.transport.abort()

    def _settle(self, connection: Any) -> None:
        self._waiting.pop(connection, None)
        arrival = self._all.get(connection)
        if arrival is not None and arrival.timer is not None:
            arrival.timer.cancel()
            arrival.timer = None


_watch = _Watch()


def guard(seconds: float) -> None:
    """Give up connections on which no head of a request came within so many seconds."""
    _watch.seconds = seconds
    for module, name in _PROTOCOLS:
        try:
            kind = getattr(import_module(module), name)
        except ImportError:  # httptools is for machines that have it
            continue
        if kind not in _watch.kinds:
            _watch.kinds.add(kind)
            _observe(kind)


def _observe(kind: Any) -> None:
    made, received, lost = kind.connection_made, kind.data_received, kind.connection_lost
    body = getattr(kind, "on_body", None)  # h11 has none, and bounds by itself what it holds

    def connection_made(self: Any, transport: asyncio.Transport) -> None:
        made(self, transport)
        _watch.made(self)

    def data_received(self: Any, data: bytes) -> None:
        before = self.cycle
        if body is not None:
            _watch.came(self, len(data))
        received(self, data)
        _watch.parsed(self, before)

    def connection_lost(self: Any, error: Exception | None) -> None:
        _watch.lost(self)
        lost(self, error)

    kind.connection_made, kind.data_received, kind.connection_lost = connection_made, data_received, connection_lost
    if body is not None:

        def on_body(self: Any, content: bytes) -> None:
            _watch.body(self, len(content))
            body(self, content)

        kind.on_body = on_body
