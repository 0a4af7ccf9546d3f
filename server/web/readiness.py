"""Check whether this process can do its work now, for balancers."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from server.errors import Refusal
from server.storage.files.shared import StoreAway
from server.storage.schema.tables import SCHEMA
from server.storage.store import Store

log = logging.getLogger("spry.server")

_EVERY = 1.0
"""Seconds for which an answer holds: anybody may ask, and none of them more than once from what is asked here."""
_LATE = 3.0
"""Seconds after which what has not answered is taken to be away."""
_BACK_IN = 5.0


class Readiness:
    """Asks the database and the home of files, one request at a time."""

    def __init__(self, store: Store, stopping: threading.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._asking = threading.Lock()
        self._began = self._asked = 0.0
        self._away = ""

    def require(self) -> None:
        """Refuse where something is missing, and say what."""
        if self._stopping.is_set():
            raise Refusal(503, "busy", "the server is stopping: ask again in a few seconds", retry_after=_BACK_IN)
        late = False
        if self._asking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._asking.release()
        else:
            late = time.monotonic() - self._began > _LATE
        if late or self._away:
            away = self._away or "the database or the files do not answer in time"
            raise Refusal(503, "busy", f"the server is not ready: {away}", retry_after=_BACK_IN)

    def _look(self) -> None:
        self._began = time.monotonic()
        if self._began < self._asked + _EVERY:
            return
        before, self._away = self._away, self._missing()
        self._asked = time.monotonic()
        if self._away != before:
            log.log(logging.ERROR if self._away else logging.INFO, "not ready: %s", self._away or "no more")

    def _missing(self) -> str:
        """Name what does not answer, or is older than this server."""
        try:
            found = self._store.database.schema()
            if self._store.shared is not None:
                self._store.shared.below("nothing")
        except SQLAlchemyError as error:
            why = str(getattr(error, "orig", error)).partition("\n")[0]
            return f"the database does not answer ({why})"
        except StoreAway as error:
            return str(error)
        if found < SCHEMA:
            return f"the database has schema {found}, this server needs {SCHEMA}: start it again"
        return ""
