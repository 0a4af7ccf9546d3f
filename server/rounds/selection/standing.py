"""Read the state of rounds that take devices, once for all check-ins of a moment."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from edge_client.wire.protocol import CheckIn
from server.jobs.demands import is_wanted
from server.jobs.job import PAUSED, RUNNING, Job
from server.policy.assignment import RoundSlot
from server.policy.teams import team_in_turn
from server.rounds.outcome import late
from server.rounds.selection.fleet import free_slots, took_part, turn
from server.rounds.selection.openings import Opening, opening_after
from server.storage.jobs import list_jobs
from server.storage.store import Store
from server.storage.work import assignments, rounds, sums

Reason = str
"""A reason to give a device nothing, in words that stay the same while it waits: it prints each once."""
_REMEMBERED = 0.5
"""The seconds for which the state of rounds is not read again, to answer fleets that ask all at once."""


@dataclass(frozen=True)
class OpenRound:
    """A round that takes devices, and the slots that it has left."""

    job: Job
    number: int
    version: int
    opened: float
    invited: int
    """The number of the round's slots, taken or free."""
    free: list[RoundSlot]
    first: frozenset[int]
    """The slots to give away before others: of a round that has not enough devices for all."""
    done: frozenset[str]
    """The devices that have done their part."""
    next: Opening | None
    """The opening of the next round; None before a device has joined this one."""

    @property
    def order(self) -> tuple[bool, bool, int, float]:
        """The sort key: a round that has begun and lacks few clients comes first, lest no job have enough."""
        begun = self.invited - len(self.free)
        missing = self.job.settings.per_round - begun
        return missing <= 0, not begun, missing if begun else 0, self.opened

    @property
    def following(self) -> Reason:
        """The condition on which the next round opens, in words."""
        wanted = self.job.settings.complete
        return f"the next opens when {wanted} have reported, or all devices, or at this one's deadline"


class Pause(NamedTuple):
    """The reason why a running job has no open round, and the opening of the next."""

    job: Job
    why: Reason
    next: Opening | None


@dataclass(frozen=True)
class Standing:
    """The running jobs: their open rounds, and why others have none."""

    rounds: list[OpenRound] = field(default_factory=list[OpenRound])
    waits: list[Pause] = field(default_factory=list["Pause"])

    def wanted(self, check_in: CheckIn) -> list[OpenRound]:
        """Return the rounds that a device asks for, in the order in which their slots are given away."""
        return sorted((one for one in self.rounds if is_wanted(one.job, check_in)), key=lambda one: one.order)

    def pauses(self, check_in: CheckIn) -> list[Pause]:
        """Return why the other jobs that it asks for have no round."""
        return [pause for pause in self.waits if is_wanted(pause.job, check_in)]


class Standings:
    """Reads and caches the state of rounds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: tuple[float, int, Standing] = (0.0, -1, Standing())
        self._sent = 0.0
        self.at_work: set[str] = set()
        """The devices with an open assignment, as of when rounds were read; those that this process gave one since."""
        self._reading = threading.Lock()

    def recent(self, device: str) -> Standing | None:
        """Return the state as read a moment ago; None where something has changed since, or it is to be read again."""
        now = self._store.now()
        read, turn, standing = self._known
        if turn != self._store.turn or not read <= now < read + 2 * _REMEMBERED or device in self.at_work:
            return None
        if now >= max(read, self._sent) + _REMEMBERED:  # one looks, for all who come meanwhile
            self._sent = now
            return None
        return standing

    def now(self) -> Standing:
        now, turn = self._store.now(), self._store.turn
        read, known_turn, known = self._known
        if known_turn == turn and read <= now < read + _REMEMBERED:
            return known
        with self._reading:  # one thread reads, those that came with it take what it found
            if self._known[:2] == (read, known_turn):
                self._known = now, turn, self._read()
            return self._known[2]

    def _read(self) -> Standing:
        with self._store.database.read() as connection:
            self.at_work = assignments.devices_at_work(connection)
        standing = Standing()
        for job in list_jobs(self._store, RUNNING, PAUSED):
            if job.state == PAUSED:
                standing.waits.append(Pause(job, f"{job.name} is paused", None))
            elif (open_round := self._read_round(job)) is not None:
                standing.rounds.append(open_round)
            else:
                standing.waits.append(Pause(job, between(job.name, job.round), self._next(job)))
        return standing

    def _next(self, job: Job) -> Opening | None:
        with self._store.database.read() as connection:
            return opening_after(connection, job, job.round, self._store.now())

    def _read_round(self, job: Job) -> OpenRound | None:
        with self._store.database.read() as connection:
            newest = rounds.find_open(connection, job.id, job.round)
            if newest is None:
                return None
            known = assignments.taken_slots(connection, newest)
            given = late.given(connection, newest) if job.settings.is_buffered else None
            is_summing = sums.find(connection, newest) is not None
            following = opening_after(connection, job, newest.number, self._store.now())
        free, per_round = free_slots(self._store, job, newest, known), job.settings.per_round
        if job.settings.secure_aggregation:
            first = team_in_turn(newest.number, job.settings.teams, job.settings.invited)
        elif given is None:
            first = in_turn(newest.number, took_part(self._store, job, newest.number - 1), per_round)
        else:
            first = late.in_turn(free, given, per_round)
        return OpenRound(
            job=job,
            number=newest.number,
            version=newest.version,
            opened=newest.opened,
            invited=job.settings.invited,
            free=[] if is_summing else free,
            first=first,
            done=frozenset(one.device for one in known if one.state == "accepted"),
            next=following,
        )


def in_turn(number: int, devices: int, per_round: int) -> frozenset[int]:
    """Return the slots to fill first when a round has fewer devices than it wants: all take turns."""
    first, slots = turn(number, devices, per_round)
    return frozenset((first + place) % per_round for place in range(slots)) if slots < per_round else frozenset()


def between(job: str, number: int) -> Reason:
    if not number:
        return f"the first round of {job} opens in a moment"
    return f"round {number} of {job} is being closed; the next opens in a moment"


def has_done(open_round: OpenRound) -> Reason:
    done = f"this device has done its part of round {open_round.number} of {open_round.job.name}"
    return f"{done}; {open_round.following}"


def is_full(open_round: OpenRound) -> Reason:
    return f"round {open_round.number} of {open_round.job.name} has no free slot; {open_round.following}"
