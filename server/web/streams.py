"""Server-sent events: what is new, as often as somebody looks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, Protocol

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from server.errors import Refusal
from server.web.services import Services

_KEEP_ALIVE = 15.0
"""Seconds of silence after which a proxy might close the connection."""

_RECENT = 8
"""News that a channel keeps for those who are behind."""

_MOST = 400
"""Streams of a process, each of which takes some 45 KB."""


class ServerSentEvent(NamedTuple):
    """A name, and JSON on one line."""

    name: str
    data: str


class News(NamedTuple):
    """The events to send now, and whether there will be more."""

    events: Sequence[ServerSentEvent]
    goes_on: bool = True


class Watched(Protocol):
    """Something that is looked at again and again."""

    def news(self) -> News:
        """Read what is new since the last look, or everything at the first."""
        ...

    def all(self) -> Sequence[ServerSentEvent]:
        """Everything, as of the last look."""
        ...


class Channel:
    """A source with many listeners: it is read once, and its rows are kept once, for all of them."""

    def __init__(self, source: Watched, every: float) -> None:
        self._source = source
        self._every = every
        self._due = 0.0
        self._number = 0
        self._recent = deque[tuple[int, Sequence[ServerSentEvent]]](maxlen=_RECENT)
        self._goes_on = True
        self._looking = asyncio.Lock()

    async def after(self, number: int) -> tuple[int, News]:
        """Return the newest news' number, and the news after another number: all of them, if that is too old."""
        async with self._looking:
            if asyncio.get_running_loop().time() >= self._due:
                await run_in_threadpool(self._look)
                self._due = asyncio.get_running_loop().time() + self._every
        if number == 0 or self._number - number > len(self._recent):
            return self._number, News(self._source.all(), self._goes_on)
        events = [event for of, events in self._recent if of > number for event in events]
        return self._number, News(events, self._goes_on)

    def _look(self) -> None:
        latest = self._source.news()
        self._goes_on = latest.goes_on
        if latest.events:
            self._number += 1
            self._recent.append((self._number, latest.events))


def stream(
    services: Services, request: Request, key: object, source: Callable[[], Watched], every: float
) -> StreamingResponse:
    """Tell news every so many seconds until there will be no more, the client leaves, or the server stops.

    All streams of one key share a source, which is made for the first of them.
    """
    if len(services.listening) >= _MOST:
        raise Refusal(503, "busy", f"{_MOST} streams of events are open: close pages that show them", retry_after=5)
    channel = services.shared.get(key)
    if channel is None:
        services.shared[key] = channel = Channel(source(), every)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    lines = _lines(services, request, channel, every)
    return StreamingResponse(lines, media_type="text/event-stream", headers=headers)


async def _lines(services: Services, request: Request, channel: Channel, every: float) -> AsyncGenerator[str, None]:
    listener = object()
    services.listening.add(listener)
    try:
        async for line in _news(services, request, channel, every):
            yield line
    finally:
        services.listening.discard(listener)


async def _news(services: Services, request: Request, channel: Channel, every: float) -> AsyncGenerator[str, None]:
    loop = asyncio.get_running_loop()
    told, number = loop.time(), 0
    while not (services.stopping.is_set() or await request.is_disconnected()):
        number, latest = await channel.after(number)
        for event in latest.events:
            yield f"event: {event.name}\ndata: {event.data}\n\n"
        if not latest.goes_on:
            return
        if latest.events:
            told = loop.time()
        elif loop.time() > told + _KEEP_ALIVE:
            told = loop.time()
            yield ": still here\n\n"
        await asyncio.sleep(every)
