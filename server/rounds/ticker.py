"""Run the background work: advance every job's rounds, and write down presence and traffic."""

from __future__ import annotations

import logging
import math
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from edge_client.errors import SpryError
from server.rounds.rounds import advance
from server.rounds.selection.offers import Offers
from server.storage import jobs, retention
from server.storage.store import Store
from server.strategy.outliers import FIRST_ROUNDS

log = logging.getLogger("spry.server")

_SAVE_EVERY = 5.0
_SWEEP_EVERY = 600.0
_OF_A_DAY = 86_400.0 / 4
"""A quarter of a day in seconds: data kept for a shorter time is cleaned up four times in it."""
_AFTER_A_DEFECT = 5.0
_PASSING = (OSError, SQLAlchemyError, MemoryError)
"""The errors that pass without an administrator: a full disk, a database that is away."""


class Ticker:
    """A thread of each worker that advances rounds; the database decides which of them closes a round.

    Without the setting `background` it leaves the rounds to others, and only writes down.
    """

    def __init__(self, store: Store, offers: Offers, stopping: threading.Event) -> None:
        self._store = store
        self._offers = offers
        self._stopping = stopping
        self._saved = 0.0
        self._swept = -math.inf
        self._sweep_every = min(_SWEEP_EVERY, store.settings.keep_days * _OF_A_DAY)
        self._thread = threading.Thread(target=self._run, name="spry-ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the work at hand."""
        self._stopping.set()
        self._store.wake.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._save()
        except Exception:
            log.exception("the devices' last states and bytes were not written down")

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._store.wake.wait(self._store.settings.tick_seconds)
            self._store.wake.clear()
            try:
                self.tick()
            except Exception:  # a defect or a full disk must not end all rounds for good
                log.exception("carrying the rounds on failed; trying again")
                self._stopping.wait(_AFTER_A_DEFECT)

    def tick(self) -> None:
        if self._store.settings.background:
            self._carry_on()
        if time.monotonic() > self._saved + _SAVE_EVERY:
            self._save()
        if self._store.settings.background and time.monotonic() > self._swept + self._sweep_every:
            self._swept = time.monotonic()
            retention.sweep(self._store, FIRST_ROUNDS)

    def _carry_on(self) -> None:
        with self._store.database.read() as connection:
            newest = jobs.newest_versions(connection)
        hindered: list[Exception] = []
        for job, version in newest:
            self._store.models.announce(job, version)
            try:
                self._advance(job)
            except _PASSING as error:  # the others may be able to
                hindered.append(error)
        if hindered:
            raise hindered[0]

    def _advance(self, job: str) -> None:
        try:
            while advance(self._store, job) and not self._stopping.is_set():
                pass
        except _PASSING:
            raise
        except SpryError as error:
            self._set_aside(job, str(error))
        except Exception as error:
            log.exception("a defect ends the rounds of job %s", job)
            self._set_aside(job, f"a defect, {type(error).__name__}: {error}; the server's log has it")

    def _set_aside(self, job: str, why: str) -> None:
        """Set a job aside until an administrator resumes it; the others go on."""
        with self._store.database.write() as connection:
            if jobs.set_aside(connection, job, why):
                self._store.audit(connection, "server", "job-set-aside", job, why)
        self._store.turn += 1
        log.error("job %s cannot go on: %s", job, why)

    def _save(self) -> None:
        self._saved = time.monotonic()
        self._offers.save_profiles()
        self._store.traffic.save()
