"""Turns of those who are not known: how many pages are sent at once, to one address and in all.

A page that is not taken costs memory until its connection is ended, and one that is asked for again and again time of
the server. So who has proved nothing takes a turn for a page, keeps it until the page is taken, and waits for it where
others have theirs; a request that waits costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

_ALL = 64
_ADDRESS = 24
"""The turns of one unknown address; a known one may have all."""


class PageTurns:
    """A queue of turns: who has one, and who waits."""

    def __init__(self) -> None:
        self._held: dict[Any, str] = {}
        self._count: Counter[str] = Counter()
        self._asked: dict[Any, tuple[str, int, asyncio.Future[bool]]] = {}  # who came first, first

    def take(self, connection: Any, address: str, *, known: bool) -> asyncio.Future[bool] | None:
        """Take a turn, or return a future of one; its result is False for connections that left before."""
        most = _ALL if known else _ADDRESS
        if connection in self._held or self._try(connection, address, most):
            return None
        future = asyncio.get_running_loop().create_future()
        self._asked[connection] = (address, most, future)
        return future

    def holds(self, connection: Any) -> bool:
        return connection in self._held

    def give_back(self, connection: Any) -> None:
        """End a turn, or the wait for one."""
        if waited := self._asked.pop(connection, None):
            _tell(waited[2], False)
        address = self._held.pop(connection, None)
        if address is None:
            return
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]
        for other, (theirs, most, future) in self._asked.items():
            if self._try(other, theirs, most):
                del self._asked[other]
                _tell(future, True)
                return

    def _try(self, connection: Any, address: str, most: int) -> bool:
        if len(self._held) >= _ALL or self._count[address] >= most:
            return False
        self._held[connection] = address
        self._count[address] += 1
        return True


def _tell(future: asyncio.Future[bool], granted: bool) -> None:
    if not future.done():
        future.set_result(granted)
