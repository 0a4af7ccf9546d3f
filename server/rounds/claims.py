"""Claim a round that is being closed: a lease of seconds, renewed for as long as the work goes on.

Nothing is concluded from the owner's name: in containers every server has the same host name and process number. A
closer that dies is silent, and its lease is soon over. One that was only slow, or whose machine slept, finds the number
that every claim raises, the fence, above its own when it wants to publish: its result is dropped.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from types import TracebackType

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from server.storage.schema.rows import Round
from server.storage.store import Store
from server.storage.work import rounds

log = logging.getLogger("spry.server")

LEASE = 10.0
"""The seconds after which a silent closer is taken for dead."""
_RENEWALS = 4
"""The renewals in each lease: a late one, behind a long transaction, loses nothing."""
PROCESS = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
"""This process's name, for people who look into the database."""


def claim(store: Store, round_: Round, *, in_time: bool | None = None) -> Claim | None:
    """Claim a round for one worker to close; accepted reports are final then. A silent worker's claim passes on.

    `in_time` is for the first: whether the round was complete, not given up for its time.
    """
    with store.database.write() as connection:
        now = store.database.now(connection, store.now())
        if in_time is not None:
            rounds.settle(connection, round_, in_time=in_time)
        claimed = rounds.claim(connection, round_, PROCESS, now, now + LEASE)
    return None if claimed is None else Claim(store, claimed)


class Claim:
    """A claim that holds within a block. An error there gives the round back, and is dropped if another holds it."""

    def __init__(self, store: Store, round_: Round) -> None:
        self.round = round_
        """The round as it was claimed."""
        self._store = store
        self._over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="spry-lease", daemon=True)

    def holds(self, connection: Connection) -> bool:
        """Tell whether nobody else has claimed the round; nobody can until the transaction ends."""
        return rounds.is_held(connection, self.round, self.round.fence)

    def __enter__(self) -> None:
        self._renewing.start()

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self._over.set()
        self._renewing.join()
        if not isinstance(error, Exception):
            return False
        try:
            held = self._extend(0.0)
        except (SQLAlchemyError, OSError):  # it is over by itself in seconds
            return False
        if not held:
            log.warning("round %d was taken over meanwhile; the error here: %s", self.round.number, error)
        return not held

    def _renew(self) -> None:
        while not self._over.wait(LEASE / _RENEWALS) and self._renew_once():
            pass

    def _renew_once(self) -> bool:
        """Renew the lease; False if it is of no use to renew it again."""
        try:
            return self._extend(LEASE)
        except (SQLAlchemyError, OSError) as error:  # the next one may do
            log.warning("the claim on round %d could not be renewed: %s", self.round.number, error)
            return True

    def _extend(self, seconds: float) -> bool:
        """Extend the lease; True if the round is still this claim's."""
        with self._store.database.write() as connection:
            until = self._store.database.now(connection, self._store.now()) + seconds
            return rounds.renew(connection, self.round, self.round.fence, until)
