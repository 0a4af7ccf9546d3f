"""The guides at `/guide`: pages that `make docs` put into this package, open to everybody."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

PAGE = "/guide"
FOLDER = Path(str(files("server") / "guide"))
_HOW = "this server came without its guide: run `make docs` in a checkout, or read docs/ there"
_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; font-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Of scripts files alone. Widths of tables and colours of listings stand in the pages, and the search is a form."""
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for each time, and answered with 304 while it is the same
}


class Pages(StaticFiles):
    """Files of the folder and none beside it."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response


def install(app: FastAPI) -> None:
    """Show the guide, or say how to come by it."""
    if (FOLDER / "index.html").is_file():
        app.mount(PAGE, Pages(directory=FOLDER, html=True), name="guide")
        return

    @app.get(PAGE, include_in_schema=False)
    @app.get(PAGE + "/{page:path}", include_in_schema=False)
    def without() -> None:
        raise HTTPException(404, _HOW)


def is_there(app: FastAPI) -> bool:
    """Whether pages may link to it."""
    return any(getattr(route, "name", "") == "guide" for route in app.routes)
