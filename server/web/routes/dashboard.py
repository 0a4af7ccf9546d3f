"""The page at `/`: files of this package, served with nothing from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from edge_client import __version__
from server.web import guide
from server.web.pages import headers_with

router = APIRouter(tags=["operations"])

FOLDER = Path(str(files("server") / "dashboard"))
_GUIDE = re.compile(r'<li><a href="guide/">.*?</li>\s*|<a href="guide/[^"]+">(.*?)</a>')
"""Links into the guide, which not every server has."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = headers_with(_POLICY)


@router.get("/", response_class=Response, responses={200: {"content": {"text/html": {}, "text/plain": {}}}})
def start(request: Request) -> Response:
    """Show the dashboard to a browser; to others, a line about this server."""
    headers = {**HEADERS, "Vary": "Accept"}
    if "text/html" not in request.headers.get("Accept", ""):
        text = f"spry {__version__}: federated fine-tuning on small devices. The API is described at /docs.\n"
        return PlainTextResponse(text, headers=headers)
    page = (FOLDER / "index.html").read_text("utf-8")
    if not guide.is_there(request.app):
        page = _GUIDE.sub(r"\1", page)
    return HTMLResponse(page.replace("{{version}}", __version__), headers=headers)
