"""Check-ins of devices that only wait, answered at once: most requests to a server with many devices.

Whatever is not plain (a device that is not known yet, one that may get a task or has one, a message that does not fit)
goes on to the route, which is described in the API and says the same; here is no second way to be refused.
"""

from __future__ import annotations

import hmac

from fastapi import Request, Response
from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_client.wire.proofs import digest_of
from edge_client.wire.protocol import CheckedIn, CheckIn
from server.control.credentials import digest
from server.control.proofs import Signed
from server.web.bodies import Strict
from server.web.connections import proved
from server.web.problems import problem
from server.web.services import Services, signed, version_in

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
        if not services.load.takes():
            await _put_off(services)(scope, receive, send)
            return
        request = Request(scope)
        head = signed(request)
        device = _device(services, request, head)
        if device is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        check_in = None if message.get("more_body") else _said(services, device, head, message.get("body", b""))
        if check_in is None:
            await self._app(scope, _again(message, receive), send)
            return
        answer = services.offers.answer_at_once(device, check_in)
        if answer is None:
            async with services.load.turn() as granted:
                answer = services.offers.answer_at_once(device, check_in) if granted else services.offers.later()
                if answer is None:
                    await self._app(scope, _again(message, receive), send)
                    return
        if head.proof:
            services.store.roster.spend(device, head.moment or 0)
        services.store.roster.note_version(device, version_in(request))
        proved(scope)
        await _tell(answer, send)


async def _tell(answer: CheckedIn, send: Send) -> None:
    body = _CHECKED_IN.dump_json(answer)
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _put_off(services: Services) -> Response:
    detail = "the server is overloaded: come again after Retry-After"
    return problem(503, "busy", detail, services.store.presence.wait())


def _device(services: Services, request: Request, head: Signed) -> str | None:
    """Find the device that asks, if it is known and may; a body of any size is nobody's yet."""
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


def _said(services: Services, device: str, head: Signed, body: bytes) -> CheckIn | None:
    if head.proof and head.digest != digest_of(body):
        return None
    if head.proof and not services.store.roster.is_newer(device, head.moment or 0):
        return None
    try:
        return _CHECK_IN.read(body)
    except ValidationError:
        return None


def _again(first: Message, receive: Receive) -> Receive:
    """Give back a body that was received, to be received again."""
    waiting = [first]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received
