"""The interactive description of the API at `/docs`, with nothing loaded from another host: fleets often have none."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

PAGE = "/docs"
DOCUMENT = "/openapi.json"
_ASSETS = "/docs/assets"
_OWN_ALONE = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page begins with a script of a few lines, which names the document to show."""


def install(app: FastAPI) -> None:
    """Add the document, the page and the files of Swagger UI, which come with the package fastapi-offline."""
    assets = Path(str(files("fastapi_offline"))) / "static"

    @lru_cache(maxsize=8)
    def encoded(root: str) -> bytes:
        """Encode the document as JSON; the server's settings say where its root is, not who asks."""
        below = {"servers": [{"url": root}]} if root else {}
        return bytes(JSONResponse(app.openapi() | below).body)

    @app.get(DOCUMENT, include_in_schema=False)
    async def document(request: Request) -> Response:
        return Response(encoded(request.scope.get("root_path", "").rstrip("/")), media_type="application/json")

    @app.get(PAGE, include_in_schema=False)
    def page() -> HTMLResponse:
        shown = get_swagger_ui_html(
            openapi_url=DOCUMENT[1:],
            title="spry: HTTP API",
            swagger_js_url=f"{_ASSETS[1:]}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS[1:]}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS[1:]}/favicon.png",
            swagger_ui_parameters={"validatorUrl": None, "persistAuthorization": False},
        )
        shown.headers["Content-Security-Policy"] = _OWN_ALONE
        return shown

    app.mount(_ASSETS, StaticFiles(directory=assets), name="docs-assets")
