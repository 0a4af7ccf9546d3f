"""Take devices' messages of a secure sum: an accepted one is on disk before its receipt is sent."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from edge_client import keys
from edge_client.secagg.messages import (
    CARD,
    DEALT,
    SIGNATURE,
    Message,
    Stage,
    Survivors,
    View,
    set_of,
    signed_vow,
)
from edge_client.secagg.streams import TAG
from edge_client.wire.protocol import Receipt
from server.errors import Overtaken, Refusal
from server.jobs.job import Job
from server.rounds.arrivals.reports import Reports
from server.rounds.secrecy.summing import arrangement_of, carried, scores_of
from server.rounds.secrecy.totals import tags_size, update_size
from server.secagg.arrangement import Arrangement
from server.secagg.opening import opening_size
from server.storage.identities import devices
from server.storage.jobs import find_job
from server.storage.schema.rows import Assignment, Round
from server.storage.work import assignments, rounds, sums
from server.storage.work.sums import Summand, SumStanding
from server.strategy.summed import sizes_in_sum

LARGEST = 1 << 20
"""The most bytes of a message, however many devices there are."""
_PATIENT, _SOON = 5.0, 0.3
"""The seconds between looks of a device: while others train, and from the roster on."""


class Summands(Reports):
    """Takes updates, scalars and failures, and devices' messages of secure sums."""

    # --- messages of devices ---

    def take_message(self, device: str, task: str, message: Message, data: bytes) -> Receipt:
        assignment = self._assignment(device, task)
        self._store.traffic.add((assignment.job, assignment.round), device, up=len(data))
        job = find_job(self._store, assignment.job)
        try:
            repeated = self._add(job, assignment, message, data)
        except Overtaken as why:
            self._let_go(assignment, why)
            raise
        except Refusal as refusal:
            self._refuse(assignment, refusal)
            raise
        if not repeated:
            self._store.wake.set()
        return Receipt(0.0, repeated=repeated)

    def _let_go(self, assignment: Assignment, why: Overtaken) -> None:
        """End the task of a device that a sum goes on without, so that it is free for others."""
        with self._store.database.write() as connection:
            assignments.end(connection, assignment, "spare", why.detail, self._store.now())
        self._store.turn += 1

    def _add(self, job: Job, assignment: Assignment, message: Message, data: bytes) -> bool:
        """Add a message of a sum; True if it had been received before."""
        if not job.settings.secure_aggregation:
            raise Refusal(422, "invalid", f"job {job.name} has no secure aggregation: send the plain update")
        with self._store.database.write() as connection:
            known = sums.find_said(connection, assignment, message)
            if known is not None:
                if known == data:
                    return True
                raise Refusal(409, "stale", f"another {message} of this task was accepted before")
            if assignment.state == "accepted":
                return True  # the sum was opened without it
            self._require_open(assignment)
            current = rounds.lock_open(connection, assignment.job, assignment.round)
            if current is None and message in ("vow", "opening"):
                return True  # others were enough: the sum is being opened
            if current is None:
                raise self._closed(connection, assignment)
            self._check(connection, job, current, assignment, message, data)
            if message == "card":
                sums.add(connection, assignment, data)
            else:
                sums.say(connection, assignment, message, data)
        return False

    def _check(
        self, connection: Connection, job: Job, current: Round, assignment: Assignment, message: Message, data: bytes
    ) -> None:
        if message == "card":
            self._check_card(connection, current, assignment, data)
            return
        standing, arrangement, known = self._of_stage(connection, job, current, assignment, message)
        if message == "shares":
            size = DEALT * len(arrangement.receivers(assignment.slot))
        else:
            size = SIGNATURE if message == "vow" else opening_size(arrangement, standing.sharers, assignment.slot)
        if len(data) != size:
            raise _unfit(f"its {message} has {len(data)} bytes, not {size}")
        if message == "vow":
            text = signed_vow(
                arrangement.context(job.id, current.number), set_of(standing.sharers), set_of(standing.survivors)
            )
            own = next(summand for summand in known if summand.place == assignment.slot)
            if not keys.verify(own.key, text, data):
                raise _unfit("it signed another sum")

    def _check_card(self, connection: Connection, current: Round, assignment: Assignment, data: bytes) -> None:
        if sums.find(connection, current) is not None:
            raise _too_late(current.number)
        device = devices.find(connection, assignment.device)
        if device is None or device.key is None:
            raise _unfit("its device has no key of its own, so nobody can check its key of the round")
        size = CARD
        if len(data) != size:
            raise _unfit(f"its key of the round has {len(data)} bytes, not {size}: upgrade spry on the device")

    def _of_stage(
        self, connection: Connection, job: Job, current: Round, assignment: Assignment, stage: Stage
    ) -> tuple[SumStanding, Arrangement, list[Summand]]:
        """Return the sum, if it is at a stage and the assignment's device is in it."""
        standing = sums.find(connection, current)
        inside = _inside(standing)
        late_vow = standing is not None and (stage, standing.stage) == ("vow", "opening")  # others were enough
        if standing is None or not (standing.stage == stage or late_vow) or assignment.slot not in inside:
            where = standing.stage if standing else "card"
            raise Refusal(409, "late", f"round {current.number} takes no {stage} of this device: its sum is at {where}")
        known = sums.summands_of(connection, current)
        return standing, arrangement_of(self._store, job, standing, known), known

    # --- masked updates ---

    def largest_update(self, device: str, task: str) -> int:
        assignment = self._assignment(device, task)
        job = find_job(self._store, assignment.job)
        if not job.settings.secure_aggregation:
            return super().largest_update(device, task)
        sizes = self._sizes(job, assignment)
        return 8 * sum(sizes.values()) + TAG * job.settings.invited

    def take_update(self, device: str, task: str, partial: Path, sha256: str) -> Receipt:
        assignment = self._assignment(device, task)
        job = find_job(self._store, assignment.job)
        if not job.settings.secure_aggregation:
            return super().take_update(device, task, partial, sha256)
        size = partial.stat().st_size
        self._store.traffic.add((assignment.job, assignment.round), device, up=size)
        try:
            repeated = self._take_masked(job, assignment, partial, size, sha256)
        except Refusal as refusal:
            self._refuse(assignment, refusal)
            raise
        if not repeated:
            self._store.wake.set()
        return Receipt(0.0, repeated=repeated)

    def _take_masked(self, job: Job, assignment: Assignment, partial: Path, size: int, sha256: str) -> bool:
        """Take a masked update; True if it had been received before."""
        self._require_open(assignment)
        with self._store.database.read() as connection:
            current = rounds.find(connection, job.id, assignment.round)
            own = [one for one in sums.summands_of(connection, current) if one.place == assignment.slot]
            if own and own[0].update is not None:
                if own[0].update == sha256:
                    return True
                raise Refusal(409, "stale", "another update of this task was accepted before")
            standing, arrangement, _ = self._of_stage(connection, job, current, assignment, "update")
        expected = update_size(arrangement, standing.sharers, assignment.slot, self._sizes(job, assignment))
        if size != expected:
            raise _unfit(f"its masked update has {size} bytes, not {expected}")
        self._store.blobs.adopt(partial, sha256)
        with self._store.database.write() as connection:
            current = self._lock_open_round(connection, assignment)
            self._of_stage(connection, job, current, assignment, "update")
            sums.say(connection, assignment, "update", sha256)
        return False

    def _sizes(self, job: Job, assignment: Assignment) -> dict[int, int]:
        manifest = self._store.bundles.manifest(job.bundle)
        return sizes_in_sum(manifest, carried(self._store, job, assignment.slot), scores_of(self._store, job))

    # --- answers to devices ---

    def view(self, device: str, task: str) -> bytes:
        """Return the state of a sum for one of its devices."""
        assignment = self._assignment(device, task)
        job = find_job(self._store, assignment.job)
        try:
            data = self._view(job, assignment).encoded()
        except Overtaken as why:
            self._let_go(assignment, why)
            raise
        self._store.traffic.add((assignment.job, assignment.round), device, down=len(data))
        return data

    def _view(self, job: Job, assignment: Assignment) -> View:
        if assignment.state == "accepted":
            return View("over", self._wait(job, assignment.round), b"")
        self._require_open(assignment)
        with self._store.database.read() as connection:
            current = rounds.find(connection, job.id, assignment.round)
            standing = sums.find(connection, current)
            known = sums.summands_of(connection, current)
        if standing is None:
            return View("card", min(_PATIENT, self._store.settings.retry_seconds / 2), b"")
        if assignment.slot not in _inside(standing):
            raise _too_late(current.number)
        own = next(summand for summand in known if summand.place == assignment.slot)
        if standing.stage == "over" or (standing.stage == "opening" and own.opening is not None):
            return View("over", self._wait(job, assignment.round), b"")
        arrangement = arrangement_of(self._store, job, standing, known)
        return View(standing.stage, _SOON, self._told(standing, arrangement, known, assignment.slot))

    def _told(self, standing: SumStanding, arrangement: Arrangement, known: list[Summand], place: int) -> bytes:
        if standing.stage == "shares":
            return arrangement.roster(place).encoded(arrangement.entrants[place].identity)
        if standing.stage == "update":
            return set_of(standing.sharers)
        is_witness, has_heard = place in arrangement.witnesses, any(one.place == place and one.vow for one in known)
        if standing.stage == "vow" and not is_witness:
            return b""
        tags = () if has_heard else self._tags(standing, arrangement, known, place)
        vows: tuple[tuple[int, bytes], ...] = ()
        if standing.stage == "opening":
            said = {summand.place: summand.vow for summand in known if summand.vow is not None}
            numbered = [(at, said[one]) for at, one in enumerate(arrangement.witnesses) if one in said]
            vows = tuple(numbered[: arrangement.quorum])
        return Survivors(set_of(standing.survivors), tags, vows).encoded()

    def _tags(
        self, standing: SumStanding, arrangement: Arrangement, known: list[Summand], place: int
    ) -> tuple[bytes, ...]:
        """Read from peers' updates what they sent this device about the sharers."""
        blobs = {summand.place: summand.update or "" for summand in known}
        sharers, survivors = set(standing.sharers), set(standing.survivors)
        tags: list[bytes] = []
        for peer in arrangement.peers(place):
            if peer in survivors:
                at = [one for one in arrangement.peers(peer) if one in sharers].index(place)
                with self._store.blobs.open(blobs[peer]) as file:
                    said = file.read(tags_size(arrangement, standing.sharers, peer))
                tags.append(said[TAG * at : TAG * (at + 1)])
        return tuple(tags)


def _inside(standing: SumStanding | None) -> tuple[int, ...]:
    """Return the slots that take part in a stage."""
    if standing is None:
        return ()
    if standing.stage == "shares":
        return standing.roster
    return standing.sharers if standing.stage == "update" else standing.survivors


def _too_late(number: int) -> Refusal:
    return Overtaken(409, "late", f"the sum of round {number} goes on without this device: check in again")


def _unfit(why: str) -> Refusal:
    return Refusal(422, "invalid", f"the update is refused: {why}")
