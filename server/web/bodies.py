"""What arrives: bounded before it is read, and files written to disk as they come."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import Refusal
from server.storage.blobs import Blobs
from server.web.problems import problem

_STREAMED = ("/update", "/v1/bundles/", "/v1/held-out/")
"""Routes that bound their bodies themselves."""


def binary(media_type: str = "application/octet-stream") -> dict[str, Any]:
    """The body of a route that reads it itself, for the OpenAPI document."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": {media_type: schema}}}


def too_large(limit: int) -> Refusal:
    raise_it = "send fewer, or raise the limit in the server's settings"
    return Refusal(413, "too-large", f"at most {limit} bytes are taken here; {raise_it}")


class BodyLimit:
    """Refuses a body beyond the settings' limit, announced or not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or any(part in scope["path"] for part in _STREAMED):
            await self._app(scope, receive, send)
            return
        limit: int = scope["app"].state.services.store.settings.max_json_bytes
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            refusal = too_large(limit)
            await problem(refusal.status, refusal.code, refusal.detail)(scope, receive, send)
            return
        received, exceeded = 0, False

        async def bounded() -> Message:
            nonlocal received, exceeded
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                exceeded = True
                raise too_large(limit)
            return message

        async def answered(message: Message) -> None:
            if not exceeded:  # the application takes what was raised for a body that it cannot parse
                await send(message)

        await self._app(scope, bounded, answered)
        if exceeded:
            refusal = too_large(limit)
            await problem(refusal.status, refusal.code, refusal.detail)(scope, receive, send)


@dataclass(frozen=True)
class Received:
    """A body on disk."""

    path: Path
    sha256: str


@asynccontextmanager
async def received(request: Request, blobs: Blobs, limit: int) -> AsyncGenerator[Received, None]:
    """The request's body as a file, which is gone when the block ends unless somebody took it."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise too_large(limit)
    path = await run_in_threadpool(blobs.partial)
    try:
        yield Received(path, await _write(request, path, limit))
    finally:
        path.unlink(missing_ok=True)


async def _write(request: Request, path: Path, limit: int) -> str:
    digest = hashlib.sha256()
    size = 0
    with path.open("wb") as file:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()
