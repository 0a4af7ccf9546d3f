"""Files that browsers are shown, with the headers that every page of this server has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.staticfiles import StaticFiles


def headers_with(policy: str) -> dict[str, str]:
    """Return the headers of a page that may load what its policy allows."""
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # asked for each time, and answered with 304 while it is the same
    }


class Pages(StaticFiles):
    """Files of a folder and none beside it."""

    def __init__(self, folder: Path, headers: dict[str, str], *, html: bool = False) -> None:
        super().__init__(directory=folder, html=html)
        self._headers = headers

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(self._headers)
        return response
