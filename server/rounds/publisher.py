"""Put the weights of each version where mirrors show them, beside the rounds: no round waits for it, or fails by it."""

from __future__ import annotations

import logging
import threading

from sqlalchemy.exc import SQLAlchemyError

from edge_client.errors import SpryError
from edge_client.store.mirrors import WEIGHTS
from server.storage.files import mirrored
from server.storage.files.mirrored import WeightsOf
from server.storage.files.publication import PublicationTarget
from server.storage.store import Store

log = logging.getLogger("spry.server")

_AFTER_A_FAILURE = 30.0
"""Seconds until a target that failed is asked again; until then devices have the weights from the server."""
_AT_THE_END = 5.0
"""Seconds that a server which stops waits for a target."""


class WeightsPublisher:
    """A thread that puts weights at a target, and removes what the server has dropped.

    What is there stands in the database, so that servers take turns, and what one has not done another does. Two may
    put the same file at the same moment: it is named by its hash.
    """

    def __init__(self, store: Store, target: PublicationTarget, stopping: threading.Event) -> None:
        self._store = store
        self._target = target
        self._stopping = stopping
        self._thread = threading.Thread(target=self._run, name="spry-publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the file at hand, but not long: another server, or this one when it starts again, goes on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_AT_THE_END)

    def _run(self) -> None:
        while not self._stopping.wait(self._store.settings.tick_seconds):
            try:
                self.publish()
            except (OSError, SpryError, SQLAlchemyError) as error:  # noqa: PERF203 -- tried again
                log.warning("weights for mirrors: %s; trying again in %.0f s", error, _AFTER_A_FAILURE)
                self._stopping.wait(_AFTER_A_FAILURE)

    def publish(self) -> None:
        """Put what is missing, and remove what is spare."""
        with self._store.database.read() as connection:
            missing, spare = mirrored.missing(connection), mirrored.spare(connection)
        for one in missing:
            with self._store.blobs.open(one.sha256) as weights:
                self._target.put(_key(one), weights)
            self._note(one, one.sha256)
            log.info("the weights of version %d of job %s are at %s", one.version, one.job, self._target.name)
        for one in spare:
            with self._store.database.read() as connection:
                is_needed = mirrored.is_needed(connection, one.sha256)
            if not is_needed:
                self._target.delete(_key(one))
            self._note(one, None)

    def _note(self, one: WeightsOf, sha256: str | None) -> None:
        with self._store.database.write() as connection:
            mirrored.note(connection, one.job, one.version, sha256)


def _key(one: WeightsOf) -> str:
    return f"{WEIGHTS}/{one.sha256}"
