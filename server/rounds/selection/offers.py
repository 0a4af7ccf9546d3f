"""Select devices that check in, and assign them tasks."""

from __future__ import annotations

import secrets
import threading
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from edge_client.wire.addresses import mirrors_in
from edge_client.wire.protocol import CheckedIn, CheckIn, Task, Training
from server.errors import Refusal
from server.jobs.demands import is_wanted, unsuited
from server.jobs.job import Job
from server.policy.assignment import Fit, RoundSlot, choose, seed_of
from server.policy.depths import Depth
from server.rounds.outcome import late
from server.rounds.secrecy.privacy import clip_for, has_paid_all
from server.rounds.secrecy.summing import sum_of
from server.rounds.selection.fleet import depth_of, is_to_measure, needs_of, runtimes_in
from server.rounds.selection.openings import Opening, wait_until
from server.rounds.selection.pace import most_passes
from server.rounds.selection.standing import OpenRound, Pause, Reason, Standings, between, has_done, is_full
from server.storage.files import mirrored
from server.storage.identities import devices
from server.storage.jobs import find_job
from server.storage.schema.rows import Assignment, Device, Round
from server.storage.store import Store
from server.storage.work import assignments, rounds, sums

_SITS_OUT = 2.0
"""The retry times that a device waits after it gave a task of this job back, or was refused: others come first."""
_LONGEST_BACK_OFF = 3600.0
"""The longest wait in seconds; it doubles with each task that a device lets expire."""
_CROWD, _CROWD_LASTS = 100, 10.0
"""The number of devices of a crowd that are asked to come back soon, and the seconds that the crowd may last."""
_REASONS = 3
"""The most jobs whose reasons are in one answer."""


class Offers:
    """Answers check-ins."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._standings = Standings(store)
        self._seen: dict[str, tuple[float, CheckIn]] = {}
        self._lock = threading.Lock()

    def answer(self, device: Device, check_in: CheckIn) -> CheckedIn:
        store = self._store
        self._seen[device.id] = store.now(), check_in
        if (held := self._held(device.id, check_in)) is not None:
            return held
        standing = self._standings.now()
        wanted, reasons = standing.wanted(check_in), list[Reason]()
        for open_round in wanted:
            offered = self._offer(open_round, device, check_in)
            if isinstance(offered, Task):
                return CheckedIn(offered)
            reasons.append(offered)
        return self._wait_for(wanted, reasons, standing.pauses(check_in), check_in)

    def answer_at_once(self, device: str, check_in: CheckIn) -> CheckedIn | None:
        """Answer by a state read a moment ago that the device comes back later; None where `answer` has to look."""
        standing = self._standings.recent(device)
        if standing is None:
            return None
        wanted, reasons = standing.wanted(check_in), list[Reason]()
        for open_round in wanted:
            if (why := self._is_closed_to(open_round, device, check_in)) is None:
                return None
            reasons.append(why)
        pauses = standing.pauses(check_in)
        if not reasons and not pauses and check_in.job is not None:
            return None
        self._seen[device] = self._store.now(), check_in
        return self._wait_for(wanted, reasons, pauses, check_in)

    def later(self) -> CheckedIn:
        """Answer to come back soon, where more devices than can be looked at ask for slots at once."""
        store, now = self._store, self._store.now()
        opening = Opening(_CROWD, _CROWD_LASTS, now)
        soon = wait_until(opening, store.presence, now)
        return CheckedIn(wait=store.presence.wait() if soon is None else soon, reason="many devices are asking")

    def _wait_for(
        self, rounds: list[OpenRound], reasons: list[Reason], pauses: list[Pause], check_in: CheckIn
    ) -> CheckedIn:
        """Answer when to come back: for the next round of a job that may need the device, else when all devices do."""
        store, now = self._store, self._store.now()
        openings = [one.next for one in rounds if self._why_unsuited(one, check_in) is None]
        openings += [pause.next for pause in pauses]
        soon = (wait_until(one, store.presence, now) for one in openings if one is not None)
        told = [*reasons, *(pause.why for pause in pauses)] or [self._nothing_runs(check_in.job)]
        wait = min([store.presence.wait(), *(seconds for seconds in soon if seconds is not None)])
        return CheckedIn(wait=wait, reason="; ".join(told[:_REASONS]))

    def _why_unsuited(self, open_round: OpenRound, check_in: CheckIn) -> str | None:
        return unsuited(open_round.job, self._store.bundles.manifest(open_round.job.bundle), check_in)

    # --- who is where ---

    def _held(self, device: str, check_in: CheckIn) -> CheckedIn | None:
        """Return the task that the device has already: it restarted, or the answer was lost.

        A task of a job that it does not want any more goes back, so that another device can have the slot.
        """
        with self._store.database.read() as connection:
            assignment = assignments.find_open(connection, device)
            if assignment is None:
                return None
            current = rounds.find(connection, assignment.job, assignment.round)
        job = find_job(self._store, assignment.job)
        if is_wanted(job, check_in):
            return CheckedIn(self._task(job, assignment, current))
        with self._store.database.write() as connection:
            why = f"the device wants tasks of {check_in.job} alone now"
            assignments.end(connection, assignment, "failed", why, self._store.now())
        self._store.turn += 1
        return None

    def _nothing_runs(self, name: str | None) -> Reason:
        if name is None:
            return "no job is running"
        try:
            job = find_job(self._store, name)
        except Refusal:
            return f"job {name!r} is not running: there is none of this name"
        return f"job {job.name!r} is not running: it is {job.state}{f' ({job.reason})' if job.reason else ''}"

    # --- assigning ---

    def _offer(self, open_round: OpenRound, device: Device, check_in: CheckIn) -> Task | Reason:
        """Assign a task, or say why there is none in this round."""
        job = open_round.job
        if (why := self._is_closed_to(open_round, device.id, check_in)) is not None:
            return why
        most, depth = most_passes(self._store, job, device.id), depth_of(self._store, job)
        while (reserved := self._reserve(open_round, check_in, most, depth)) is not None:
            slot, fit = reserved
            assignment = Assignment(
                id=secrets.token_hex(12), job=job.id, round=open_round.number, slot=slot.number,
                device=device.id, seed=seed_of(job.settings.seed or 0, open_round.number, slot.number),
                units=fit.units, cut=fit.cut, batch=fit.batch, runtime=fit.runtime,
                variant=_apart(fit.training, job.settings.training),
                state="open", reason="", created=self._store.now(), declared=check_in.examples or None,
                **late.terms(job, open_round.version, self._store.now()),
            )  # fmt: skip
            try:
                # a power cut may take an assignment back that nobody has sent anything for; its device is given another
                with self._store.database.write(lasting=False) as connection:
                    joined = self._join(connection, open_round, assignment, device)
            except IntegrityError:  # another worker gave the slot away, or gave this device another
                if (held := self._held(device.id, check_in)) is not None and held.task is not None:
                    self._give_back(open_round, slot)
                    return held.task
                continue
            if isinstance(joined, str):
                self._give_back(open_round, slot)
                return joined
            self._standings.at_work.add(device.id)
            return self._task(job, assignment, joined)
        return self._no_place(open_round, check_in)

    def _is_closed_to(self, open_round: OpenRound, device: str, check_in: CheckIn) -> Reason | None:
        """Say why a round has no slot for a device, whatever the device could hold; None if it may."""
        if device in open_round.done:
            return has_done(open_round)
        if (why := self._why_unsuited(open_round, check_in)) is not None:
            return why
        return None if open_round.free else is_full(open_round)

    def _reserve(
        self, open_round: OpenRound, check_in: CheckIn, most: float | None, depth: Depth | None
    ) -> tuple[RoundSlot, Fit] | None:
        """Take a slot out of those that this process takes for free."""
        with self._lock:
            chosen = self._choose(open_round, check_in, most, depth)
            if chosen is not None:
                open_round.free.remove(chosen[0])
        return chosen

    def _choose(
        self, open_round: OpenRound, check_in: CheckIn, most: float | None = None, depth: Depth | None = None
    ) -> tuple[RoundSlot, Fit] | None:
        job, needs = open_round.job, needs_of(self._store, open_round.job)
        runtimes = runtimes_in(self._store.bundles.manifest(job.bundle), check_in)
        first = [slot for slot in open_round.free if slot.number in open_round.first]
        for free in (first, open_round.free):
            chosen = choose(
                job.settings.assignment, free, needs, runtimes, check_in.memory_bytes, most,
                low_memory=check_in.low_memory, depth=depth,
            )  # fmt: skip
            if chosen is not None:
                return chosen
        return None

    def _no_place(self, open_round: OpenRound, check_in: CheckIn) -> Reason:
        name = open_round.job.name
        if not open_round.free:
            return is_full(open_round)
        with self._lock:
            fits = self._choose(open_round, replace(check_in, memory_bytes=None)) is not None
            fits_alone = self._choose(open_round, replace(check_in, low_memory=True)) is not None
        if fits and check_in.memory_bytes is not None:
            memory = f"{check_in.memory_bytes / 1e6:.0f} MB of memory"
            if fits_alone:
                return f"{name} has no free slot that fits {memory} unless this device joins with --low-memory"
            return f"{name} has no free slot that fits {memory}"
        offered = ", ".join(check_in.runtimes)
        return f"the bundle of {name} has no programs of {offered} for a free slot; export it again"

    def _give_back(self, open_round: OpenRound, slot: RoundSlot) -> None:
        with self._lock:
            open_round.free.append(slot)
            open_round.free.sort(key=lambda free: free.number)

    def _join(
        self, connection: Connection, open_round: OpenRound, assignment: Assignment, device: Device
    ) -> Round | Reason:
        """Take a slot, if the round still takes this device; the first one starts its clock."""
        job, now = open_round.job, self._store.now()
        current = rounds.lock_open(connection, job.id, assignment.round)
        if current is None:
            self._store.turn += 1
            return between(job.name, assignment.round)
        if assignments.has_accepted(connection, current, device.id):
            self._store.turn += 1
            return has_done(open_round)
        if sums.find(connection, current) is not None:
            self._store.turn += 1
            return is_full(open_round)
        why = has_paid_all(connection, job, device.id) or self._sits_out(connection, job, current, device)
        if why is not None:
            return why
        if job.settings.is_buffered and late.are_enough(connection, current, job.settings.per_round):
            self._store.turn += 1
            return is_full(open_round)
        assignments.add(connection, assignment)
        if current.started is None:
            rounds.start_clock(connection, current, now, now + job.settings.deadline)
        return rounds.find(connection, job.id, assignment.round)

    def _sits_out(self, connection: Connection, job: Job, current: Round, device: Device) -> str | None:
        """Say why others come first; None if they do not."""
        now, retry = self._store.now(), self._store.settings.retry_seconds
        if (trouble := assignments.last_trouble(connection, job.id, device.id, now - _SITS_OUT * retry)) is not None:
            first = f"{job.name} lets others come first for {_SITS_OUT * retry:.0f} s"
            if trouble.state == "failed":
                return f"{first}: this device gave its last task back"
            return f"{first}: this device was refused"
        missed = assignments.missed(connection, device.id)
        if missed.times:
            back_off = min(retry * 2.0**missed.times, _LONGEST_BACK_OFF)
            times = f"{missed.times} task{'s' if missed.times > 1 else ''} of this device expired in a row"
            if now < missed.last + back_off:
                return f"others come first for {back_off:.0f} s: {times}; raise the job's deadline if it is slow"
            if now < current.opened + _SITS_OUT * retry:
                return f"this device comes last in round {current.number} of {job.name}: {times}"
        label, at_once = devices.limit_of(connection, device.token)
        if at_once is not None and devices.count_at_work(connection, device.token) >= at_once:
            named = f" {label!r}" if label else ""
            who = f"{at_once} device{'s' if at_once > 1 else ''} that enrolled with the token{named}"
            return f"{who} may take part at once, and as many do"
        return None

    def _task(self, job: Job, assignment: Assignment, current: Round) -> Task:
        """Build the message of an assignment and its round."""
        settings = job.settings
        left = (assignment.until or current.deadline or self._store.now() + settings.deadline) - self._store.now()
        version = late.begun_with(assignment, current)
        return Task(
            id=assignment.id,
            job=job.id,
            job_name=job.name,
            round=assignment.round,
            seed=assignment.seed,
            units=list(assignment.units),
            cut=assignment.cut,
            bundle=job.bundle,
            runtime=assignment.runtime,
            mirrors=mirrors_in(settings.mirrors or self._store.settings.mirrors),
            version=version,
            iteration=current.iteration,
            seconds=max(0.0, left),
            training=assignment.training(settings.training),
            optimizers=settings.optimizers,
            batch=assignment.batch,
            evaluate=settings.evaluates_in(assignment.round),
            measure=is_to_measure(self._store, job, assignment.round, assignment.slot, version),
            clip=clip_for(self._store, job, version),
            sum=sum_of(self._store, job, assignment),
            weights=self._mirrored(job, version),
            published=self._store.models.published(job.id, version) if settings.training.mode == "epoch" else 0.0,
        )

    def _mirrored(self, job: Job, version: int) -> str:
        """Name a version's weights where the server's own mirrors have them; a job's mirrors may show bundles alone."""
        settings = self._store.settings
        if not (settings.publish_weights and settings.mirrors) or job.settings.mirrors:
            return ""
        with self._store.database.read() as connection:
            return mirrored.weights_of(connection, job.id, version)

    # --- check-ins of devices ---

    def save_profiles(self) -> None:
        """Write check-ins together rather than one by one, and count the devices that are here."""
        self._write_profiles()
        self._store.presence.look()

    def _write_profiles(self) -> None:
        seen, self._seen = self._seen, {}
        if not seen:
            return
        roster = self._store.roster
        with self._store.database.write() as connection:
            devices.note_check_ins(connection, seen, roster.signed(seen), roster.versions(seen))


def _apart(training: Training, of_job: Training) -> dict[str, Any] | None:
    """Return the settings of a training that are not the job's; None where all are."""
    own = asdict(of_job)
    return {name: value for name, value in asdict(training).items() if value != own[name]} or None
