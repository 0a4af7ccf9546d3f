"""Select and assign: what a device that checks in is given to do."""

from __future__ import annotations

import hashlib
import random
import secrets
import threading
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from edge_client.training.estimators import ESTIMATORS
from edge_client.wire.protocol import CheckedIn, CheckIn, Task
from server.jobs.assignment import Fit, Needs, RoundSlot, choose
from server.jobs.job import RUNNING, Job
from server.storage import devices, parts, rounds
from server.storage.jobs import find_job, list_jobs
from server.storage.rows import Device, Part, Round
from server.storage.store import Store

_REMEMBERED = 0.5
"""Seconds for which the state of rounds is not read again, to answer fleets that ask all at once."""
_SITS_OUT = 2.0
"""How many retry times a device waits that gave a task of this job back, or was refused: others come first."""


@dataclass(frozen=True)
class OpenRound:
    """A round that takes devices, and the places that it has left."""

    job: Job
    number: int
    free: list[RoundSlot]


class Offers:
    """Answers check-ins."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: tuple[float, int, list[OpenRound]] = (0.0, -1, [])
        self._seen: dict[str, tuple[float, CheckIn]] = {}
        self._sent = 0.0
        self._at_work: set[str] = set()
        """Devices with an open part, as of when rounds were read; those that this process gave one since."""
        self._needs: dict[str, Needs] = {}
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def answer(self, device: Device, check_in: CheckIn) -> CheckedIn:
        store = self._store
        self._seen[device.id] = store.now(), check_in
        if (held := self._held(device.id)) is not None:
            return held
        reason = f"job {check_in.job!r} is not running" if check_in.job else "no job is running"
        for open_round in self._rounds():
            if check_in.job not in (None, open_round.job.id, open_round.job.name):
                continue
            refused = self._unsuitable(open_round, check_in)
            if refused is None:
                task = self._assign(open_round, device.id, check_in)
                if task is not None:
                    return CheckedIn(task)
                refused = self._no_place(open_round, check_in)
            reason = refused
        return CheckedIn(wait=self.wait(), reason=reason)

    def answer_at_once(self, device: str, check_in: CheckIn) -> CheckedIn | None:
        """To come back later, and why, by what was read a moment ago; None where `answer` has to look."""
        now = self._store.now()
        read, turn, known = self._open
        if turn != self._store.turn or not read <= now < read + 2 * _REMEMBERED or device in self._at_work:
            return None
        if now >= max(read, self._sent) + _REMEMBERED:  # one looks, for all who come meanwhile
            self._sent = now
            return None
        reason = f"job {check_in.job!r} is not running" if check_in.job else "no job is running"
        for open_round in known:
            if check_in.job not in (None, open_round.job.id, open_round.job.name):
                continue
            refused = self._unsuitable(open_round, check_in)
            if refused is None:
                return None
            reason = refused
        self._seen[device] = now, check_in
        return CheckedIn(wait=self.wait(), reason=reason)

    def wait(self) -> float:
        """Spread, so that a fleet does not come back as one."""
        return self._store.settings.retry_seconds * random.uniform(0.5, 1.5)  # noqa: S311

    # --- who is where ---

    def _held(self, device: str) -> CheckedIn | None:
        """The task that the device has already: it restarted, or the answer was lost."""
        with self._store.database.read() as connection:
            part = parts.find_open(connection, device)
            if part is None:
                return None
            current = rounds.find(connection, part.job, part.round)
        return CheckedIn(self._task(find_job(self._store, part.job), part, current))

    def _rounds(self) -> list[OpenRound]:
        """Jobs take turns: the one with the most places to fill comes first."""
        now, turn = self._store.now(), self._store.turn
        read, known_turn, known = self._open
        if known_turn == turn and read <= now < read + _REMEMBERED:
            return known
        with self._reading:  # one thread reads, those that came with it take what it found
            if self._open[:2] == (read, known_turn):
                with self._store.database.read() as connection:
                    self._at_work = parts.devices_at_work(connection)
                open_rounds = [self._read_round(job) for job in list_jobs(self._store, RUNNING)]
                self._open = now, turn, sorted((r for r in open_rounds if r is not None), key=lambda r: -len(r.free))
            return self._open[2]

    def _read_round(self, job: Job) -> OpenRound | None:
        with self._store.database.read() as connection:
            newest = rounds.find_open(connection, job.id, job.round)
            if newest is None:
                return None
            taken = parts.taken_slots(connection, newest)
        units = len(self._store.bundles.manifest(job.bundle).units)
        places = job.settings.slots(units, job.settings.places)
        free = [slot for slot in places if slot.number not in taken]
        return OpenRound(job, newest.number, free)

    def _unsuitable(self, open_round: OpenRound, check_in: CheckIn) -> str | None:
        job, offered = open_round.job, self._store.bundles.manifest(open_round.job.bundle).runtimes
        if not set(offered) & set(check_in.runtimes):
            return f"{job.name} needs one of the runtimes {', '.join(offered)}"
        if (estimator := job.settings.training.estimator) not in ESTIMATORS:
            return f"{job.name} needs the estimator {estimator}, which the server has no more"
        if job.settings.mains_only and check_in.power == "battery":
            return f"{job.name} takes no devices on battery"
        if job.settings.unmetered_only and check_in.metered:
            return f"{job.name} takes no devices on a metered network"
        return None if open_round.free else self._no_place(open_round, check_in)

    def _no_place(self, open_round: OpenRound, check_in: CheckIn) -> str:
        if open_round.free and check_in.memory_bytes is not None:
            return f"{open_round.job.name} has no place left that fits {check_in.memory_bytes / 1e6:.0f} MB of memory"
        return f"round {open_round.number} of {open_round.job.name} has no place left"

    # --- assigning ---

    def _assign(self, open_round: OpenRound, device: str, check_in: CheckIn) -> Task | None:
        job = open_round.job
        while (reserved := self._reserve(open_round, check_in)) is not None:
            slot, fit = reserved
            part = Part(
                id=secrets.token_hex(12), job=job.id, round=open_round.number, slot=slot.number,
                device=device, seed=seed_of(job.settings.seed or 0, open_round.number, slot.number),
                units=slot.units, cut=fit.cut, batch=fit.batch, runtime=fit.runtime,
                state="open", reason="", created=self._store.now(),
            )  # fmt: skip
            try:
                with self._store.database.write() as connection:
                    current = self._join(connection, job, part)
            except IntegrityError:  # another worker gave the place away, or gave this device another
                if (held := self._held(device)) is not None:
                    self._give_back(open_round, slot)
                    return held.task
                continue
            if current is None:
                self._give_back(open_round, slot)
                return None
            self._at_work.add(device)
            return self._task(job, part, current)
        return None

    def _reserve(self, open_round: OpenRound, check_in: CheckIn) -> tuple[RoundSlot, Fit] | None:
        """Take a place out of those that this process takes for free."""
        job = open_round.job
        runtimes = [name for name in check_in.runtimes if name in self._store.bundles.manifest(job.bundle).runtimes]
        with self._lock:
            needs = self._needs.setdefault(
                job.id, Needs(self._store.bundles.manifest(job.bundle), job.settings.training)
            )
            chosen = choose(job.settings.assignment, open_round.free, needs, runtimes, check_in.memory_bytes)
            if chosen is not None:
                open_round.free.remove(chosen[0])
        return chosen

    def _give_back(self, open_round: OpenRound, slot: RoundSlot) -> None:
        with self._lock:
            open_round.free.append(slot)
            open_round.free.sort(key=lambda free: free.number)

    def _join(self, connection: Connection, job: Job, part: Part) -> Round | None:
        """Take a place, if the round still takes devices; the first one starts its clock."""
        now = self._store.now()
        current = rounds.lock_open(connection, job.id, part.round)
        if current is None:
            self._store.turn += 1
            return None
        sits_out_since = self._store.now() - _SITS_OUT * self._store.settings.retry_seconds
        if parts.went_wrong(connection, job.id, part.device, sits_out_since):
            return None
        parts.add(connection, part)
        if current.started is None:
            rounds.start_clock(connection, current, now, now + job.settings.deadline)
        return rounds.find(connection, job.id, part.round)

    def _task(self, job: Job, part: Part, current: Round) -> Task:
        """A part and its round as a message."""
        settings = job.settings
        left = (current.deadline or self._store.now() + settings.deadline) - self._store.now()
        every = settings.device_evaluation
        return Task(
            id=part.id,
            job=job.id,
            job_name=job.name,
            round=part.round,
            seed=part.seed,
            units=list(part.units),
            cut=part.cut,
            bundle=job.bundle,
            runtime=part.runtime,
            version=current.version,
            iteration=current.iteration,
            seconds=max(0.0, left),
            training=settings.training,
            optimizers=settings.optimizers,
            batch=part.batch,
            evaluate=bool(every) and part.round % every == 0,
        )

    # --- what devices said ---

    def save_profiles(self) -> None:
        """Who was here and with what, written together rather than at every check-in."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        with self._store.database.write() as connection:
            devices.note_check_ins(connection, seen)


def seed_of(job_seed: int, number: int, slot: int) -> int:
    """A client's seed: nobody stores it, and two clients of a job never share one. 63 bits, for databases."""
    digest = hashlib.sha256(f"{job_seed}/{number}/{slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
