"""Keep the server's data: the database, blobs and bundles in the data folder, and the audit log."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection

from server.errors import ServerConfigError
from server.names import ADMIN_TOKEN
from server.policy.assignment import Needs
from server.policy.depths import Reach
from server.settings import Settings
from server.storage.files.blobs import Blobs
from server.storage.files.bundles import BundleFiles
from server.storage.files.models import Models
from server.storage.files.shared import open_store
from server.storage.identities import audit
from server.storage.identities.presence import Presence
from server.storage.identities.roster import KnownDevices
from server.storage.schema.database import Database
from server.storage.work.traffic import Traffic


class Store:
    """Opened once in each process."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.now = clock
        self.folder = settings.data_dir.absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.admin_token = settings.admin_token.get_secret_value() or _kept_token(self.folder / ADMIN_TOKEN)
            self.database = Database(settings.database_url, self.folder)
        except OSError as error:
            raise ServerConfigError(
                f"the data folder {self.folder} cannot be used: {error.strerror}; free space there, or choose another "
                "with --data or SPRY_DATA_DIR"
            ) from None
        self.shared = open_store(settings.blob_store, self.database)
        self.blobs = Blobs(self.folder / "blobs", self.shared)
        self.bundles = BundleFiles(self.folder / "bundles", settings.max_bundle_file_bytes, self.shared)
        self.models = Models(self.database, self.blobs, self.bundles)
        self.traffic = Traffic(self.database)
        self.roster = KnownDevices(self.database)
        self.presence = Presence(settings, self.database, lambda: self.now())  # noqa: PLW0108 -- it may be set
        self.wake = threading.Event()
        """Set when a report came in: a round may be complete."""
        self.needs: dict[str, Needs] = {}
        """The needs of a job's slots, by the job's id: computed once in each process."""
        self.present: dict[str, tuple[float, int]] = {}
        """The time at which the devices of a job's open round were counted last, and their number."""
        self.reach: dict[str, Reach] = {}
        """The depths that a job's devices could reach at the last look."""
        self.took_part: dict[str, tuple[int, int]] = {}
        """The last round of a job that was closed, and the number of devices that it counted."""
        self.turn = 0
        """Counts what changed in this process about rounds and their places."""

    def audit(self, connection: Connection, actor: str, action: str, subject: str = "", detail: str = "") -> None:
        audit.add(connection, self.now(), actor, action, subject, detail)

    def close(self) -> None:
        self.roster.close()
        self.database.close()


def _kept_token(path: Path) -> str:
    """Return the administrator's token, made at the first start."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except OSError:
        path.unlink()
        raise
    return path.read_text().strip()


def _read_token(path: Path) -> str:
    if path.stat().st_mode & 0o077:
        raise ServerConfigError(f"{path} can be read by other users; run: chmod 600 {path}")
    for _ in range(100):  # another worker may have made the file a moment ago
        if token := path.read_text().strip():
            return token
        time.sleep(0.02)
    raise ServerConfigError(f"{path} is empty; delete it to have a new one made")
