"""Routes that ask who it is before they read what is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any
from urllib.parse import unquote_plus

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import solve_dependencies
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from server.text import CONTROLS
from server.web.bodies import Crowd, parsed, read, strict_for, taken_by
from server.web.connections import proved
from server.web.problems import problem

_ASKED = "spry.asked"
_FIRST: set[Any] = set()
"""The dependencies that are asked before a body is read."""
_STRANGERS = 4096
"""Bytes that anybody may send who has no secret."""
_crowd = Crowd()


def once(ask: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Wrap a dependency that is asked before the body is read: a route that asks again gets the same answer."""

    @wraps(ask)
    async def asked(request: Request, *given: Any, **named: Any) -> Any:
        known: dict[Any, Any] = request.scope.setdefault(_ASKED, {})
        if ask not in known:
            if iscoroutinefunction(ask):
                known[ask] = await ask(request, *given, **named)
            else:
                known[ask] = await run_in_threadpool(ask, request, *given, **named)
            if known[ask] is not None:  # as what is open to everybody tells
                proved(request.scope)
        return known[ask]

    _FIRST.add(asked)
    return asked


class Route(APIRoute):
    """A route with a message: authentication comes first, then the message, bounded, then its other dependencies.

    A route that reads its body itself does so when all of that is known, and says how much it takes.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        asking = Dependant(dependencies=[asked for asked in self.dependant.dependencies if asked.call in _FIRST])
        taken, strict = taken_by(self.endpoint), strict_for(self.body_field.field_info.annotation)

        async def admitted(request: Request) -> Response:
            settings = request.app.state.services.store.settings
            stack = request.scope["fastapi_inner_astack"]
            await solve_dependencies(request=request, dependant=asking, async_exit_stack=stack, embed_body_fields=False)
            limit = min(taken.limit or settings.max_json_bytes, settings.max_json_bytes)
            if request.scope.get(_ASKED):
                content = await read(request, limit, settings.patience_seconds)
            else:
                with _crowd.patience(settings.patience_seconds) as seconds:
                    content = await read(request, min(limit, _STRANGERS), seconds)
            message = parsed(content, taken)
            if strict is not None:
                strict.check(content)
            return await handler(_Read(request.scope, content, message))

        return admitted


class _Read(Request):
    """A request whose body is there."""

    def __init__(self, scope: Scope, content: bytes, message: Any) -> None:
        super().__init__(scope)
        self._content = content
        self._message = message

    async def body(self) -> bytes:
        return self._content

    async def json(self) -> Any:
        return self._message


class Door:
    """Refuses addresses that nothing here can have: control characters, which databases and terminals choke on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _has_controls(scope):
            refused = problem(422, "invalid", "an address, a query or a header has a control character; leave it out")
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _has_controls(scope: Scope) -> bool:
    query = scope["query_string"].decode("latin-1")
    if CONTROLS.search(scope["path"]) or (query and CONTROLS.search(unquote_plus(query))):
        return True
    return any(b"\0" in value for _, value in scope["headers"])
