"""Read bodies: bounded before they are read, in bytes and in time, and files written to disk as they arrive."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from anyio import fail_after
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from server.errors import Refusal
from server.storage.files.blobs import Blobs
from server.text import CONTROLS, spaced

_DEEPEST = 32
"""Lists and objects inside each other, in a message."""
_ELEMENTS = 20_000
"""Values in a message."""
_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SLOWEST = 1024
"""Bytes a second: a body that comes more slowly is given up."""
_CROWD = 32
"""Bodies of strangers that are waited for in patience at once."""
_HURRY = 1.0
"""Seconds that each of a crowd has."""

_Said = TypeVar("_Said")
_Route = TypeVar("_Route", bound=Callable[..., Any])


def binary(media_type: str = "application/octet-stream") -> dict[str, Any]:
    """Describe the body of a route that reads it itself, for the OpenAPI document."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": {media_type: schema}}}


def too_large(limit: int) -> Refusal:
    raise_it = "send fewer, or raise the limit in the server's settings"
    return Refusal(413, "too-large", f"at most {limit} bytes are taken here; {raise_it}")


# --- what a route takes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """Bound what a route takes of a message; nowhere more than the setting `max_json_bytes`."""

    limit: int | None = None
    any_text: bool = False
    """True if its texts were written by machines: control characters become spaces instead of a refusal."""


_TAKEN: dict[Any, Taken] = {}


def takes(limit: int, *, any_text: bool = False) -> Callable[[_Route], _Route]:
    """Says of a route how large its message may be."""

    def declared(route: _Route) -> _Route:
        _TAKEN[route] = Taken(limit, any_text)
        return route

    return declared


def taken_by(route: Any) -> Taken:
    return _TAKEN.get(route, Taken())


# --- messages --------------------------------------------------------------------------------------------------------


class Crowd:
    """Count strangers who are sending a body; all on one event loop."""

    def __init__(self) -> None:
        self._waiting = 0

    @contextmanager
    def patience(self, seconds: float) -> Generator[float, None, None]:
        """Bound how long one more of them may take: many half-sent bodies must not use up the process's files."""
        self._waiting += 1
        try:
            yield seconds if self._waiting <= _CROWD else min(seconds, _HURRY)
        finally:
            self._waiting -= 1


async def read(request: Request, limit: int, seconds: float) -> bytes:
    """Read a whole body that is small enough to be held."""
    parts = [chunk async for chunk in _chunks(request, limit, seconds)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parsed(content: bytes, taken: Taken) -> Any:
    """Parse the message in a body, whose size in memory is bounded first."""
    if not content:
        return None
    _bounded(content)
    try:
        message = json.loads(content)
    except ValueError as error:
        raise _unfit(f"it is no JSON ({error})") from None
    if content.isascii() and b"\\" not in content and b"\x7f" not in content:
        return message  # JSON has other control characters as escapes alone
    return _cleaned(message) if taken.any_text else _checked(message)


def _bounded(content: bytes) -> None:
    """Counted on the bytes, where a value costs nothing yet; what stands in texts counts too."""
    if b"\0" in content:  # in UTF-8 none stands outside of escapes, and other encodings would hide from the counts
        raise _unfit("it is not JSON in UTF-8")
    opened = content.count(b"[") + content.count(b"{")
    if opened + content.count(b",") > _ELEMENTS or content.count(b'"') > 4 * _ELEMENTS:
        raise _unfit(f"it has more than {_ELEMENTS} values")
    if opened > _DEEPEST and _depth(content) > _DEEPEST:
        raise _unfit(f"it is nested more than {_DEEPEST} deep")


def _depth(content: bytes) -> int:
    outside = content.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    deepest = depth = 0
    for bracket in b"".join(outside).translate(None, _BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _checked(value: Any) -> Any:
    if isinstance(value, str) and (control := CONTROLS.search(value)):
        raise _unfit(f"text may not have the character {control[0]!a}; leave it out")
    if isinstance(value, dict):
        for key, inner in value.items():
            _checked(key)
            _checked(inner)
    if isinstance(value, list):
        for inner in value:
            _checked(inner)
    return value


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return spaced(value)
    if isinstance(value, dict):
        return {spaced(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value


def _unfit(why: str) -> Refusal:
    return Refusal(422, "invalid", f"the request does not fit: {why}")


class Strict(Generic[_Said]):
    """Reads messages of devices out of JSON: each value is of the type that the protocol names, as in a report.

    Pydantic takes the text "9" and the truth for numbers, where nobody says otherwise. What people write in forms and
    files may be read so; a device that says so is none of this protocol.
    """

    def __init__(self, kind: type[_Said]) -> None:
        self._adapter = TypeAdapter(kind)

    def read(self, content: bytes | str) -> _Said:
        """Parse the message; raise pydantic's `ValidationError` where it does not fit."""
        return self._adapter.validate_json(content, strict=True)

    def check(self, content: bytes) -> None:
        """Refuse a body as FastAPI would."""
        try:
            self.read(content)
        except ValidationError as error:
            told = error.errors(include_url=False, include_context=False, include_input=False)
            raise RequestValidationError([one | {"loc": ("body", *one["loc"])} for one in told]) from None


def strict_for(kind: Any) -> Strict[Any] | None:
    """Return the reader of a message of `edge_client.wire.protocol`, a dataclass; None for pydantic's models."""
    return Strict(kind) if isinstance(kind, type) and is_dataclass(kind) else None


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A body on disk."""

    path: Path
    sha256: str


@asynccontextmanager
async def received(request: Request, blobs: Blobs, limit: int, seconds: float) -> AsyncGenerator[Received, None]:
    """Receive the request's body as a file, which is deleted when the block ends unless somebody took it."""
    _check_announced(request, limit)
    path = await run_in_threadpool(blobs.partial)
    try:
        yield Received(path, await _write(request, path, limit, seconds))
    finally:
        path.unlink(missing_ok=True)


async def _write(request: Request, path: Path, limit: int, seconds: float) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        async for chunk in _chunks(request, limit, seconds):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


class Uploads:
    """Track uploads: of one task once at a time, and of one device few."""

    _OF_A_DEVICE = 2

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, str] = {}

    @contextmanager
    def one(self, device: str, task: str) -> Generator[None, None, None]:
        with self._lock:
            if task in self._tasks or list(self._tasks.values()).count(device) >= self._OF_A_DEVICE:
                raise Refusal(
                    429, "busy", "this task's update is being received already; wait for its answer", retry_after=5
                )
            self._tasks[task] = device
        try:
            yield
        finally:
            with self._lock:
                del self._tasks[task]


# --- as it comes -----------------------------------------------------------------------------------------------------


def _check_announced(request: Request, limit: int) -> None:
    announced = request.headers.get("content-length", "0")
    if not (announced.isascii() and announced.isdigit()) or len(announced) > 18 or int(announced) > limit:
        raise too_large(limit)


async def _chunks(request: Request, limit: int, seconds: float) -> AsyncGenerator[bytes, None]:
    """Yield a body's chunks while it is within bounds: in so many seconds, and more for long ones."""
    _check_announced(request, limit)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    size = 0
    stream = request.stream()
    while True:
        try:
            with fail_after(until + size / _SLOWEST - loop.time()):
                chunk = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(
                408, "busy", "the request did not arrive in time; send it again, faster", retry_after=seconds
            ) from None
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        if chunk:
            yield chunk
