"""Files that are whole after any crash, and names that are safe for them."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from edge_client.events import Event, Tell, silent

T = TypeVar("T")
PRIVATE, SHARED = 0o600, 0o644
TEMPORARY = ".writing-"
"""The prefix of the name of a file while it is written."""


def write(path: Path, data: bytes, *, mode: int = SHARED) -> None:
    """Put a file in place as a whole: after a crash there is the old one or the new one."""
    make_folder(path.parent)
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)


def sync_folder(path: Path) -> None:
    """Flush a folder, so that what was moved into it stays there after a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, kind: type[T], tell: Tell = silent) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        set_aside(path, str(error), tell)
        return None


def set_aside(path: Path, why: str, tell: Tell) -> None:
    """Move a file that cannot be read out of the way, for somebody to look at."""
    aside = path.with_name(path.name + ".damaged")
    with suppress(FileNotFoundError):
        path.replace(aside)
    tell(Event("warning", f"{path} could not be read ({why}); it was set aside as {aside.name}"))


def server_folder(server: str) -> str:
    """Return a folder's name for a server's address."""
    parts = urlsplit(server)
    return safe_name(f"{parts.netloc}{parts.path}".rstrip("/").lower())


def safe_name(name: str) -> str:
    """Return the name itself where it is a plain one, else one with a hash; servers choose the names of jobs."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:80]
    return plain if plain and plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
