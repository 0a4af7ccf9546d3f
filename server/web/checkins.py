"""Check-ins of devices that only wait, answered at once: most of what a server with many devices hears.

Whatever is not plain (a device that is not known yet, one that may get a task or has one, a message that does not fit)
goes on to the route, which is described in the API and says the same; here is no second way to be refused.
"""

from __future__ import annotations

import hmac

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.wire.proofs import digest_of
from edge_client.wire.protocol import CheckedIn, CheckIn
from server.control.credentials import digest
from server.control.proofs import Signed
from server.web.bodies import Strict
from server.web.connections import proved
from server.web.services import Services, signed

_PATH = "/v1/check-in"
_LARGEST = 4096
_CHECK_IN, _CHECKED_IN = Strict(CheckIn), TypeAdapter(CheckedIn)


class AtOnce:
    """Answers what needs no database."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != _PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        request = Request(scope)
        head = signed(request)
        device = _device(services, request, head)
        if device is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        answer = None if message.get("more_body") else _answer(services, device, head, message.get("body", b""))
        if answer is None:
            await self._app(scope, _again(message, receive), send)
            return
        proved(scope)
        headers = [(b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def _device(services: Services, request: Request, head: Signed) -> str | None:
    """Who asks, if it is known and may; a body of any size is nobody's yet."""
    length = request.headers.get("content-length", "")
    if not (length.isdigit() and len(length) <= len(str(_LARGEST)) and int(length) <= _LARGEST):
        return None
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    name, _, secret = bearer.partition(".")
    device = services.store.roster.known(name)
    if device is None:
        return None
    if head.proof:
        return name if head.is_recent(services.store.now()) and head.is_by(device) else None
    return name if scheme.lower() == "bearer" and hmac.compare_digest(digest(secret), device.hash) else None


def _answer(services: Services, device: str, head: Signed, body: bytes) -> bytes | None:
    if head.proof and head.digest != digest_of(body):
        return None
    roster, moment = services.store.roster, head.moment or 0
    if head.proof and not roster.is_newer(device, moment):
        return None
    try:
        check_in = _CHECK_IN.read(body)
    except ValidationError:
        return None
    answer = services.offers.answer_at_once(device, check_in)
    if head.proof and answer is not None:
        roster.spend(device, moment)
    return None if answer is None else _CHECKED_IN.dump_json(answer)


def _again(first: Message, receive: Receive) -> Receive:
    """What was received is there to be received."""
    waiting = [first]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received
