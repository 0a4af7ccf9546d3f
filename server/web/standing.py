"""Connections that stand open: how long each may wait for its other end, and how many may.

A connection waits for its other end when no whole request came, when the answer is not taken, or when the other end has
closed. What waits longest goes first. A connection on which a secret or a signature was proved is known, and so is an
address for a day after that: strangers cannot use up the room of those.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import resource
import struct
import termios
from collections import OrderedDict
from typing import Any, NamedTuple

from server.addresses import is_within, networks
from server.web.turns import PageTurns

SLOWEST = 1024
"""Bytes a second: an answer that is taken more slowly is given up, as is a body that comes so."""
BEING_ANSWERED = "spry_answering"
"""A connection's request that is answered, where others came after it."""
_HEAD = 32 << 10
"""Bytes of a head, or of what frames a body, that a connection may hold."""
_DISCARDED = 1 << 20
"""The bytes of a body that are discarded after its answer, so that the sender reads the answer."""
_FRAMING = 8
"""Bytes that frame a byte of a body at most, in chunks of one."""
_WRITTEN = 32 << 10
"""Bytes of an answer that are held until its reader takes some; with TLS asyncio would hold 512 KiB."""
_WANTED = 8192
"""File descriptors that the process asks for, where it may have them."""
_OWN = 256
"""File descriptors for the database, bodies on their way to disk, and connections that were not yet looked at."""
_STRANGERS = 512
"""Connections of unknown addresses that may wait at once, and those of one known address."""
_FRESH = 1.0
"""Seconds that the request on a new connection has to be read, however many came with it."""
_KNOWN = 65_536
_DAY = 86_400.0


class Room(NamedTuple):
    """The most connections of a process."""

    all: int
    strangers: int
    address: int

    @classmethod
    def of_process(cls) -> Room:
        """Count the file descriptors that there are, and ask for more where few are allowed."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
        most = _WANTED if soft == resource.RLIM_INFINITY else soft
        room = max(most - _OWN, most // 2)
        strangers = min(_STRANGERS, room // 2)
        return cls(room, strangers, strangers // 2)


class _State:
    """The state of one connection."""

    __slots__ = ("address", "closed", "discarded", "fresh", "held", "left", "proven", "since", "stalled")

    def __init__(self, address: str, proven: bool) -> None:
        self.address = address
        self.proven = proven
        self.fresh = True  # nothing was asked on it
        self.stalled = False  # more was written than is taken
        self.closed = False  # the other end sends nothing more
        self.since = 0.0
        self.left = 0
        self.held = 0
        self.discarded = 0


class OpenConnections:
    """The open connections of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, room: Room, proxies: str) -> None:
        self._loop = loop
        self._seconds = seconds
        self._room = room
        self._proxies = networks(proxies)
        self._all: dict[Any, _State] = {}
        self._waiting: dict[Any, _State] = {}  # the longest first
        self._of_address: dict[str, dict[Any, _State]] = {}  # those that wait, without the proven
        self._strangers: dict[Any, _State] = {}
        self._known: OrderedDict[str, float] = OrderedDict()
        self._sweeping: asyncio.TimerHandle | None = None
        self._turns = PageTurns()

    # --- what happens on a connection ---

    def made(self, connection: Any) -> None:
        address = connection.client[0] if connection.client else ""
        state = self._all[connection] = _State(address, proven=is_within(address, self._proxies))
        connection.transport.set_write_buffer_limits(_WRITTEN, 0)
        self._wait(connection, state)
        if len(self._all) > self._room.all:
            self._end(self._dispensable())

    def came(self, connection: Any, size: int) -> None:
        if state := self._all.get(connection):
            state.held += size

    def body(self, connection: Any, size: int) -> None:
        if state := self._all.get(connection):
            state.held = max(0, state.held - _FRAMING * size)
            if connection.cycle.response_complete:
                state.discarded += size

    def parsed(self, connection: Any, before: Any) -> None:
        """Update a connection's state after data was parsed: a head is complete, or waited for."""
        state = self._all.get(connection)
        if state is None:
            return
        if connection.cycle is not before:
            state.fresh = False
            state.discarded = 0
            if not queued(connection):
                state.held = 0
            if not (state.stalled or state.closed):
                self._settle(connection, state)
        elif not _is_answering(connection) and connection not in self._waiting:
            self._wait(connection, state)
        if state.held > _HEAD or state.discarded > _DISCARDED:
            self._end(connection)

    def answered(self, connection: Any) -> None:
        state = self._all.get(connection)
        if state is not None and not _is_answering(connection):
            self._wait(connection, state)
            if self._turns.holds(connection):  # until all is sent; uvloop does so when it comes to an end here
                self._loop.call_soon(self._taken, connection)

    def stalls(self, connection: Any) -> None:
        """More of an answer is held than its reader has taken."""
        if state := self._all.get(connection):
            state.stalled = True
            self._wait(connection, state)

    def flows(self, connection: Any) -> None:
        state = self._all.get(connection)
        if state is None:
            return
        state.stalled = False
        if _is_answering(connection) and not state.closed:
            self._settle(connection, state)
        else:
            self._wait(connection, state)
            self._taken(connection)

    def half_closed(self, connection: Any) -> None:
        if state := self._all.get(connection):
            state.closed = True
            self._wait(connection, state)

    def lost(self, connection: Any) -> None:
        if state := self._all.pop(connection, None):
            self._settle(connection, state)
            self._turns.give_back(connection)

    async def turn(self, connection: Any) -> bool:
        """Wait until a page may be sent on a connection; False where it was ended meanwhile."""
        state = self._all.get(connection)
        if state is None or state.proven:
            return state is not None
        granted = self._turns.take(connection, state.address, known=self._is_known(state.address))
        if granted is None:
            return True
        if queued(connection):  # nor may they ask for several at once where others wait
            self._end(connection)
            return False
        self._wait(connection, state)
        if not await granted:
            return False
        if not (state.stalled or state.closed):
            self._settle(connection, state)
        return True

    def proved(self, connection: Any) -> None:
        """Note that a correct secret or signature arrived on a connection."""
        state = self._all.get(connection)
        if state is None:
            return
        self._known[state.address] = self._loop.time()
        self._known.move_to_end(state.address)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        if not state.proven:
            waits = connection in self._waiting
            self._settle(connection, state)
            state.proven = True
            if waits:
                self._wait(connection, state)

    def _taken(self, connection: Any) -> None:
        """Let another have the turn of one whose page is taken."""
        if not _is_answering(connection) and not connection.transport.get_write_buffer_size():
            self._turns.give_back(connection)

    # --- waiting ---

    def _is_known(self, address: str) -> bool:
        return self._loop.time() < self._known.get(address, -_DAY) + _DAY

    def _wait(self, connection: Any, state: _State) -> None:
        """Wait for the other end from now on."""
        self._settle(connection, state)
        state.since, state.left = self._loop.time(), _untaken(connection, state)
        self._waiting[connection] = state
        if not state.proven:
            self._of_address.setdefault(state.address, {})[connection] = state
            if not self._is_known(state.address):
                self._strangers[connection] = state
            self._trim(state.address)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(min(_FRESH, self._seconds / 4), self._sweep)

    def _settle(self, connection: Any, state: _State) -> None:
        """Stop waiting for a connection whose other end did its part."""
        if self._waiting.pop(connection, None) is None:
            return
        self._strangers.pop(connection, None)
        if of_address := self._of_address.get(state.address):
            of_address.pop(connection, None)
            if not of_address:
                del self._of_address[state.address]

    def _trim(self, address: str) -> None:
        """End what has waited longest of one address and of all strangers, where there are too many."""
        most = self._room.strangers if self._is_known(address) else self._room.address
        for standing, limit in ((self._of_address.get(address, {}), most), (self._strangers, self._room.strangers)):
            too_many = len(standing) - limit
            if too_many > 0:
                young = self._loop.time() - _FRESH
                old = (one for one, state in standing.items() if not (state.fresh and state.since > young))
                for connection in [one for _, one in zip(range(too_many), old, strict=False)]:
                    self._end(connection)

    def _dispensable(self) -> Any:
        """Choose a connection to do without: of strangers, the unproved, those that wait, then anybody."""
        for standing in (self._strangers, *self._of_address.values(), self._waiting):
            if standing:
                return next(iter(standing))
        return next(iter(self._all))

    def _sweep(self) -> None:
        """End what has waited too long; a reader that takes its answer, if slowly, has more time."""
        now, self._sweeping = self._loop.time(), None
        for connection, state in [one for one in self._waiting.items() if now >= one[1].since + self._seconds]:
            left = _untaken(connection, state)
            if left and state.left - left >= min(state.left, SLOWEST * self._seconds):
                self._wait(connection, state)
            else:
                self._end(connection)
        for connection in [one for one in self._waiting if self._turns.holds(one)]:
            self._taken(connection)
        for address in list(self._of_address):
            self._trim(address)
        if self._waiting and self._sweeping is None:
            self._sweeping = self._loop.call_later(min(_FRESH, self._seconds / 4), self._sweep)

    def _end(self, connection: Any) -> None:
        self.lost(connection)
        disconnect(connection)
        connection.transport.abort()


def disconnect(connection: Any) -> None:
    """Stop all writing to a connection; uvicorn marks only the request that came last."""
    for cycle in (connection.cycle, getattr(connection, BEING_ANSWERED, None)):
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()


def queued(connection: Any) -> int:
    """Requests that came before the answer to another was sent."""
    return len(getattr(connection, "pipeline", ()))


def _is_answering(connection: Any) -> bool:
    return connection.cycle is not None and not connection.cycle.response_complete


def _untaken(connection: Any, state: _State) -> int:
    """Bytes of answers that the other end has not taken: in this process, and in the system where some are here."""
    here = connection.transport.get_write_buffer_size()
    if not (here or state.stalled):
        return 0
    with contextlib.suppress(OSError, AttributeError):
        number = connection.transport.get_extra_info("socket").fileno()
        return here + struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, b"\0" * 4))[0]
    return here
