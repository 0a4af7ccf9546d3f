"""Server-sent events: what is new, as often as somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from server.web.services import Services

_KEEP_ALIVE = 15.0
"""Seconds of silence after which a proxy might close the connection."""


class ServerSentEvent(NamedTuple):
    """A name, and JSON on one line."""

    name: str
    data: str


class News(NamedTuple):
    """What to tell now, and whether there will be more."""

    events: Sequence[ServerSentEvent]
    goes_on: bool = True


def stream(services: Services, request: Request, news: Callable[[], News], every: float) -> StreamingResponse:
    """Ask for news every so many seconds until there will be no more, the client leaves, or the server stops."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(services, request, news, every), media_type="text/event-stream", headers=headers)


async def _lines(
    services: Services, request: Request, news: Callable[[], News], every: float
) -> AsyncGenerator[str, None]:
    loop = asyncio.get_running_loop()
    told = loop.time()
    while not (services.stopping.is_set() or await request.is_disconnected()):
        latest = await run_in_threadpool(news)
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
