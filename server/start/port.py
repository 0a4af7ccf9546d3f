"""Find a port for a project's server on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from edge_client.store import files
from server.errors import ServerConfigError
from server.processes import check_free
from server.project import file

FIRST, _COUNT = 8000, 20
_LINE = re.compile(r"^port = \d+", re.MULTILINE)


def free_port(host: str = "127.0.0.1") -> int | None:
    """Return the first port that nothing listens on, so that two projects can be up at a time."""
    return next((port for port in range(FIRST, FIRST + _COUNT) if _is_free(host, port)), None)


def _is_free(host: str, port: int) -> bool:
    try:
        check_free(host, port)
    except ServerConfigError:
        return False
    return True


def write_port(folder: Path, port: int) -> bool:
    """Write a port into the project's file, whose other words stay; False if it has no line for it."""
    path = folder / file.FILE
    text, count = _LINE.subn(f"port = {port}", path.read_text(encoding="utf-8"))
    if count == 1:
        files.write(path, text.encode())
    return count == 1
