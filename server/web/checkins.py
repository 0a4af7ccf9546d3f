"""Check-ins of devices that only wait, answered at once: most of what a server with many devices hears.

Whatever is not plain (a device that is not known yet, one that may get a task or has one, a message that does not fit)
goes on to the route, which is described in the API and says the same; here is no second way to be refused.
"""

from __future__ import annotations

import hmac

from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.wire.protocol import CheckedIn, CheckIn
from server.control.credentials import digest
from server.web.services import Services

_PATH = "/v1/check-in"
_LARGEST = 4096
_CHECK_IN, _CHECKED_IN = TypeAdapter(CheckIn), TypeAdapter(CheckedIn)


class AtOnce:
    """Answers what needs no database."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != _PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        device = _device(services, dict(scope["headers"]))
        if device is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        answer = None if message.get("more_body") else _answer(services, device, message.get("body", b""))
        if answer is None:
            await self._app(scope, _again(message, receive), send)
            return
        headers = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def _device(services: Services, headers: dict[bytes, bytes]) -> str | None:
    """Who asks, if it is known and may; a body of any size is nobody's yet."""
    length = headers.get(b"content-length", b"")
    scheme, _, bearer = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if not length.isdigit() or int(length) > _LARGEST or scheme.lower() != "bearer":
        return None
    name, _, secret = bearer.partition(".")
    device = services.store.roster.known(name)
    return name if device is not None and hmac.compare_digest(digest(secret), device.hash) else None


def _answer(services: Services, device: str, body: bytes) -> bytes | None:
    try:
        check_in = _CHECK_IN.validate_json(body)
    except ValidationError:
        return None
    answer = services.offers.answer_at_once(device, check_in)
    return None if answer is None else _CHECKED_IN.dump_json(answer)


def _again(first: Message, receive: Receive) -> Receive:
    """What was received is there to be received."""
    waiting = [first]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received
