"""Measure this process's load: check-ins of devices that could as well come later are put off before rounds suffer.

Whatever a round needs (weights, bundles, updates) is always taken. A check-in that has to be looked at waits for its
turn, so that there are threads for the others; where too many wait, it is asked to come back later. Where far more come
than the server wants, or the process is late with all that arrives, they are not looked at: the answer is 503, with the
seconds to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from server.storage.identities.presence import Presence

_LOOK_EVERY = 0.1
_MANY = 4.0
"""Times the rate that the server wants, beyond which check-ins of a second are put off."""
_FEW = 50
"""Check-ins of a second that are never too many."""
_LATE = 1.0
"""Seconds that the process may be late with what has arrived, two looks in turn: once it may have been stopped."""
_TURNS, _WAITING = 8, 16
"""Check-ins that are looked at in the database at once, and those that are or wait for it: their wait is short."""


class Load:
    """The load of one process; made on its loop."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._late = self._before = self._second = 0.0
        self._taken = 0
        self._waiting = 0
        self._turns = asyncio.Semaphore(_TURNS)
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _LOOK_EVERY
        self._next = self._loop.call_at(self._due, self._look)

    def takes(self) -> bool:
        """Count a check-in; return whether it is looked at."""
        now = self._loop.time()
        if now >= self._second + 1.0:
            self._second, self._taken = now, 0
        if self._late > _LATE or self._taken >= max(_FEW, _MANY * self._presence.wanted):
            return False
        self._taken += 1
        return True

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[bool, None]:
        """Wait until a check-in may be looked at; False where too many wait already."""
        if self._waiting >= _WAITING:
            yield False
            return
        began = time.monotonic()
        self._waiting += 1
        try:
            async with self._turns:
                yield True
        finally:
            self._waiting -= 1
            self._presence.took(time.monotonic() - began)

    def close(self) -> None:
        self._next.cancel()

    def _look(self) -> None:
        """Measure how late this look is, as all that had arrived before it was."""
        now = self._loop.time()
        late = now - self._due
        self._late, self._before = min(late, self._before), late
        self._presence.took(late)
        self._due = now + _LOOK_EVERY
        self._next = self._loop.call_at(self._due, self._look)
