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
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from edge_client.errors import SpryError
from edge_client.wire.protocol import PROBLEM, Problem
from server.errors import TITLES, Refusal

log = logging.getLogger("spry.server")
_FULL_DATABASE = re.compile("disk is full|No space left on device")  # SQLite's words, and PostgreSQL's

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "A problem document that says what to do", "model": Problem},
}
"""What every route may answer, for the OpenAPI document."""


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

    @app.exception_handler(OSError)
    async def machine(request: Request, error: OSError) -> JSONResponse:
        return full(request) if error.errno in (errno.ENOSPC, errno.EDQUOT) else await defect(request, error)

    @app.exception_handler(OperationalError)
    async def database(request: Request, error: OperationalError) -> JSONResponse:
        return full(request) if _FULL_DATABASE.search(str(error.orig)) else await defect(request, error)

    def full(request: Request) -> JSONResponse:
        log.error("%s %s: the disk is full; free space in the data folder", request.method, request.url.path)
        return problem(507, "busy", "the server's disk is full; its administrator must free space", 60)

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        return problem(500, "internal", "the server failed; its log has the reason")
