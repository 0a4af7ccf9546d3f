"""Count the devices that are here, and set how long each waits, so that all together ask at the wanted rate.

A fleet's check-ins a second are its devices over the wait that they are given. The devices are counted in the database
every few seconds by each process, so that all workers and replicas give the same wait; each lowers the rate by itself
while its own answers take long.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from server.settings import Settings
from server.storage.identities import devices
from server.storage.schema.database import Database

LONG_ANSWER = 0.5
"""The seconds of a long answer; while answers take as long, devices are asked to come less often."""
_COUNT_EVERY = 10.0
_AWAY_AFTER = 3.0
"""The number of waits that a device may be silent for; one takes 1.8 times its mean at most."""
_AWAY_AT_LEAST = 60.0
"""Seconds; one that still works on a task that the round was closed without is silent too."""
_LOWER, _RAISE, _LOWEST = 0.7, 0.05, 0.25
"""The factor of the rate after a second with a long answer, the gain after one without, and the least share."""
_WEIGH_EVERY = 1.0
_LONGEST = 86_400.0
"""Seconds that a device waits in the mean at most, however large its fleet."""


class Presence:
    """The devices that are here, and their waits."""

    def __init__(self, settings: Settings, database: Database, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._share = 1.0
        self._slowest = self._weighed = 0.0
        self._count = self._before = 0
        self._looked: float | None = None
        self._began = self._reach = self._returning = 0.0
        self._counting = threading.Lock()

    # --- the rate ---

    @property
    def wanted(self) -> float:
        """Check-ins a second that the server wants."""
        return self._settings.check_ins_per_second

    @property
    def rate(self) -> float:
        """Check-ins a second that it wants at the moment."""
        return self.wanted * self._share

    def took(self, seconds: float) -> None:
        """Note how long an answer took, or how late this process looked at what had arrived."""
        self._slowest = max(self._slowest, seconds)
        now = time.monotonic()
        if now < self._weighed + _WEIGH_EVERY:
            return
        is_slow, self._weighed, self._slowest = self._slowest > LONG_ANSWER, now, 0.0
        self._share = max(self._share * _LOWER, _LOWEST) if is_slow else min(self._share + _RAISE, 1.0)

    # --- the wait ---

    @property
    def usual(self) -> float:
        """Seconds that a device which has nothing to do waits in the mean."""
        return max(self._settings.retry_seconds, min(self.count / self.rate, _LONGEST))

    @property
    def flow(self) -> float:
        """Check-ins a second that devices make by themselves."""
        return max(self.count, 1) / self.usual

    def wait(self) -> float:
        """Seconds for one device: spread, so that a fleet does not come back as one."""
        return self.usual * random.uniform(0.5, 1.5)  # noqa: S311

    # --- who is here ---

    @property
    def count(self) -> int:
        """Devices that are here, as of a few seconds ago."""
        if self._looked is None:
            self.look()
        return self._count

    @property
    def away_before(self) -> float:
        """The time since which a device must have checked in not to be away."""
        return self._clock() - max(self._silence(self._count), self._reach)

    def look(self) -> None:
        """Count the devices that are here, unless that was done a moment ago."""
        with self._counting:
            now = time.monotonic()
            if self._looked is None:
                self._begin(now)
            elif now >= self._looked + _COUNT_EVERY:
                # a device that got a longer wait before may still be in it
                self._reach = max(self._silence(self._count), self._reach - (now - self._looked) / 2)
                heard = self._heard_since(self._clock() - self._reach)
                missing = self._before * (1 - (now - self._began) / self._returning)
                self._count = max(heard, int(missing))
            else:
                return
            self._looked = now

    def _begin(self, now: float) -> None:
        """Count those who were here when any device checked in last: after a long outage they all come back.

        They are counted less and less, as they come back or do not.
        """
        with self._database.read() as connection:
            newest = devices.newest_heard(connection) or self._clock()
            self._reach = self._silence(devices.count_enrolled(connection))
            self._before = self._count = devices.count_heard(connection, newest - self._reach)
        self._began, self._returning = now, self._silence(self._before)

    def _heard_since(self, moment: float) -> int:
        with self._database.read() as connection:
            return devices.count_heard(connection, moment)

    def _silence(self, count: int) -> float:
        """Seconds without a word after which one of so many devices is away."""
        return max(_AWAY_AFTER * max(self._settings.retry_seconds, count / self.rate), _AWAY_AT_LEAST)
