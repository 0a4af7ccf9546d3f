"""Configure the server's logs: lines for people, or one JSON object a line for machines (`SPRY_LOG_FORMAT`).

uvicorn sets its loggers up before it loads the application, in each worker. For JSON they are taken over, and requests
are logged by a logger of ours, which also knows how long each took; for people the application's own lines come out
beside uvicorn's.
"""

from __future__ import annotations

import logging
import logging.config
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ServerConfigError
from server.settings import read_settings

FIELDS = {"levelname": "level", "name": "logger", "exc_info": "exception"}
_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "color_message", "taskName"}
_requests = logging.getLogger("spry.requests")


def configure() -> None:
    """Configure logging by the settings. Refused settings are reported by the start that follows."""
    try:
        json = read_settings().log_format == "json"
    except ServerConfigError:
        json = False
    if json:
        logging.config.dictConfig(_json())
        return
    ours = logging.getLogger("spry")
    ours.setLevel(logging.INFO)
    if not ours.handlers:
        ours.handlers = list(logging.getLogger("uvicorn").handlers)
    _requests.disabled = True  # uvicorn's own lines tell of them


def _json() -> dict[str, Any]:
    formatter = {
        "()": "pythonjsonlogger.json.JsonFormatter",
        "fmt": ["levelname", "name", "message"],
        "timestamp": "time",
        "rename_fields": FIELDS,
        "rename_fields_keep_missing": False,
        "reserved_attrs": sorted(_STANDARD),
    }
    logger = {"handlers": ["lines"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": formatter},
        "handlers": {"lines": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "json"}},
        "loggers": {
            "spry": logger,
            "uvicorn": logger,
            "uvicorn.error": {"level": "INFO"},
            "uvicorn.access": {"handlers": [], "propagate": False},
        },
        "root": {"handlers": ["lines"], "level": "WARNING"},
    }


class RequestLog:
    """Tells of each request when it is answered. No header and no query: they may hold secrets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _requests.disabled:
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            told = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(time.perf_counter() - started, 6),
                "client": scope["client"][0] if scope.get("client") else None,
            }
            _requests.info("%s %s %d", scope["method"], scope["path"], status, extra=told)
