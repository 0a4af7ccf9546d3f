"""Errors on the wire: problem documents (RFC 9457) that say what to do."""

from __future__ import annotations

import errno
import logging
import math
import re
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from edge_client.errors import SpryError
from edge_client.wire.protocol import PROBLEM, Problem
from server.errors import TITLES, Refusal
from server.storage.files.shared import StoreAway

log = logging.getLogger("spry.server")
_DEFECT = re.compile("no such (table|column)|syntax error|has no column")
"""SQLite calls operational what is wrong in a query."""
_BACK_IN = 5.0
_FULL_DATABASE = re.compile("disk is full|No space left on device")  # SQLite's words, and PostgreSQL's

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "A problem document that says what to do", "model": Problem},
}
"""The problems that every route may answer with, for the OpenAPI document."""


def describe(app: FastAPI) -> None:
    """FastAPI documents every model as plain JSON; a problem has a media type of its own."""
    document = app.openapi

    def openapi() -> dict[str, Any]:
        schema = document()
        for operations in schema["paths"].values():
            for operation in operations.values():
                content = operation["responses"]["4XX"]["content"]
                if "application/json" in content:
                    content[PROBLEM] = content.pop("application/json")
        return schema

    app.openapi = openapi


def problem(status: int, code: str, detail: str, retry_after: float | None = None) -> JSONResponse:
    headers = {} if retry_after is None else {"Retry-After": str(math.ceil(retry_after))}
    body = Problem(TITLES.get(status, "Error"), status, detail, code)
    return JSONResponse(asdict(body), status, headers, media_type=PROBLEM)


def install(app: FastAPI) -> None:
    """Turn every exception into a problem document."""

    @app.exception_handler(Refusal)
    async def refusal(_: Request, error: Refusal) -> JSONResponse:
        return problem(error.status, error.code, error.detail, error.retry_after)

    @app.exception_handler(SpryError)
    async def unusable(_: Request, error: SpryError) -> JSONResponse:
        return problem(422, "invalid", str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        told = [f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()[:5]]
        return problem(422, "invalid", "the request does not fit: " + "; ".join(told))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        response = problem(error.status_code, "http", str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, _: ClientDisconnect) -> JSONResponse:
        log.info("%s %s: the connection was cut before all had come", request.method, request.url.path)
        return problem(400, "invalid", "the connection was cut before all of the request had come")

    @app.exception_handler(StoreAway)
    async def files_away(request: Request, error: StoreAway) -> JSONResponse:
        log.error("%s %s: %s", request.method, request.url.path, error)
        return problem(503, "busy", "the server's files are out of reach; ask again in a few seconds", _BACK_IN)

    @app.exception_handler(OSError)
    async def machine(request: Request, error: OSError) -> JSONResponse:
        return _full(request) if error.errno in (errno.ENOSPC, errno.EDQUOT) else _defect(request, error)

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        return _defect(request, error)

    _install_for_database(app)


def _install_for_database(app: FastAPI) -> None:
    @app.exception_handler(OperationalError)
    async def operational(request: Request, error: OperationalError) -> JSONResponse:
        if _FULL_DATABASE.search(str(error.orig)):
            return _full(request)
        return (_defect if _DEFECT.search(str(error.orig)) else _away)(request, error)

    @app.exception_handler(InterfaceError)
    @app.exception_handler(NoConnection)
    async def unreachable(request: Request, error: Exception) -> JSONResponse:
        return _away(request, error)

    @app.exception_handler(DataError)
    async def unkept(_: Request, __: DataError) -> JSONResponse:
        return problem(422, "invalid", "the request holds text or a number that the database cannot keep")


def _full(request: Request) -> JSONResponse:
    log.error("%s %s: the disk is full; free space in the data folder", request.method, request.url.path)
    return problem(507, "busy", "the server's disk is full; its administrator must free space", 60)


def _away(request: Request, error: Exception) -> JSONResponse:
    why = str(getattr(error, "orig", error)).partition("\n")[0]
    log.error("%s %s: the database does not answer: %s", request.method, request.url.path, why)
    return problem(503, "busy", "the server's database does not answer; ask again in a few seconds", _BACK_IN)


def _defect(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return problem(500, "internal", "the server failed; its log has the reason")
