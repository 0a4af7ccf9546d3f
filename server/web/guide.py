"""The guides at `/guide`: pages that `make docs` put into this package, open to everybody."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from server.web.pages import Pages, headers_with

PAGE = "/guide"
FOLDER = Path(str(files("server") / "guide"))
_HOW = "this server came without its guide: run `make docs` in a checkout, or read docs/ there"
_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; font-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The content policy: scripts of files alone. Widths and colours are in the pages; the search is a form."""
HEADERS = headers_with(_POLICY)


def install(app: FastAPI) -> None:
    """Show the guide, or say how to get it."""
    if (FOLDER / "index.html").is_file():
        app.mount(PAGE, Pages(FOLDER, HEADERS, html=True), name="guide")
        return

    @app.get(PAGE, include_in_schema=False)
    @app.get(PAGE + "/{page:path}", include_in_schema=False)
    def without() -> None:
        raise HTTPException(404, _HOW)


def is_there(app: FastAPI) -> bool:
    """Tell whether pages may link to the guide."""
    return any(getattr(route, "name", "") == "guide" for route in app.routes)
