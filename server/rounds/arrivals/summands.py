"""What devices say for a sum, and what they are told of it. What is accepted is on disk before its receipt is sent."""

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
from server.rounds.secrecy.totals import sizes_of, tags_size, update_size
from server.secagg.arrangement import Arrangement
from server.secagg.opening import opening_size
from server.storage.identities import devices
from server.storage.jobs import find_job
from server.storage.schema.rows import Part, Round
from server.storage.work import parts, rounds, sums
from server.storage.work.sums import Summand, SumStanding

LARGEST = 1 << 20
"""Bytes of a message; none is longer, however many devices there are."""
_PATIENT, _SOON = 5.0, 0.3
"""Seconds between looks of a device: while others train, and from the roster on."""


class Summands(Reports):
    """Takes updates, scalars and failures, and what devices say for sums."""

    # --- what devices say ---

    def take_message(self, device: str, task: str, message: Message, data: bytes) -> Receipt:
        part = self._part(device, task)
        self._store.traffic.add((part.job, part.round), device, up=len(data))
        job = find_job(self._store, part.job)
        try:
            repeated = self._add(job, part, message, data)
        except Overtaken as why:
            self._let_go(part, why)
            raise
        except Refusal as refusal:
            self._refuse(part, refusal)
            raise
        if not repeated:
            self._store.wake.set()
        return Receipt(0.0, repeated=repeated)

    def _let_go(self, part: Part, why: Overtaken) -> None:
        """A device that a sum goes on without has its task no longer, and is free for others."""
        with self._store.database.write() as connection:
            parts.end(connection, part, "spare", why.detail, self._store.now())
        self._store.turn += 1

    def _add(self, job: Job, part: Part, message: Message, data: bytes) -> bool:
        """Whether it had come before."""
        if not job.settings.secure_aggregation:
            raise Refusal(422, "invalid", f"job {job.name} adds nothing in secret: send the update as it is")
        with self._store.database.write() as connection:
            known = sums.find_said(connection, part, message)
            if known is not None:
                if known == data:
                    return True
                raise Refusal(409, "stale", f"another {message} of this task was accepted before")
            if part.state == "accepted":
                return True  # the sum was opened without it
            self._require_open(part)
            current = rounds.lock_open(connection, part.job, part.round)
            if current is None and message in ("vow", "opening"):
                return True  # others were enough: the sum is being opened
            if current is None:
                raise self._closed(connection, part)
            self._check(connection, job, current, part, message, data)
            if message == "card":
                sums.add(connection, part, data)
            else:
                sums.say(connection, part, message, data)
        return False

    def _check(
        self, connection: Connection, job: Job, current: Round, part: Part, message: Message, data: bytes
    ) -> None:
        if message == "card":
            self._check_card(connection, current, part, data)
            return
        standing, arrangement, known = self._of_stage(connection, job, current, part, message)
        if message == "shares":
            size = DEALT * len(arrangement.receivers(part.slot))
        else:
            size = SIGNATURE if message == "vow" else opening_size(arrangement, standing.sharers, part.slot)
        if len(data) != size:
            raise _unfit(f"its {message} has {len(data)} bytes, not {size}")
        if message == "vow":
            text = signed_vow(
                arrangement.context(job.id, current.number), set_of(standing.sharers), set_of(standing.survivors)
            )
            own = next(summand for summand in known if summand.place == part.slot)
            if not keys.verify(own.key, text, data):
                raise _unfit("what it signed is not this sum")

    def _check_card(self, connection: Connection, current: Round, part: Part, data: bytes) -> None:
        if sums.find(connection, current) is not None:
            raise _too_late(current.number)
        device = devices.find(connection, part.device)
        if device is None or device.key is None:
            raise _unfit("its device has no key of its own, and nobody knows whose the key of the round is")
        size = CARD
        if len(data) != size:
            raise _unfit(f"its key of the round has {len(data)} bytes, not {size}: upgrade spry on the device")

    def _of_stage(
        self, connection: Connection, job: Job, current: Round, part: Part, stage: Stage
    ) -> tuple[SumStanding, Arrangement, list[Summand]]:
        """The sum, if it is at a stage and the part's device in it."""
        standing = sums.find(connection, current)
        inside = _inside(standing)
        late_vow = standing is not None and (stage, standing.stage) == ("vow", "opening")  # others were enough
        if standing is None or not (standing.stage == stage or late_vow) or part.slot not in inside:
            where = standing.stage if standing else "card"
            raise Refusal(409, "late", f"round {current.number} takes no {stage} of this device: its sum is at {where}")
        known = sums.summands_of(connection, current)
        return standing, arrangement_of(self._store, job, standing, known), known

    # --- masked updates ---

    def largest_update(self, device: str, task: str) -> int:
        part = self._part(device, task)
        job = find_job(self._store, part.job)
        if not job.settings.secure_aggregation:
            return super().largest_update(device, task)
        sizes = self._sizes(job, part)
        return 8 * sum(sizes.values()) + TAG * job.settings.places

    def take_update(self, device: str, task: str, partial: Path, sha256: str) -> Receipt:
        part = self._part(device, task)
        job = find_job(self._store, part.job)
        if not job.settings.secure_aggregation:
            return super().take_update(device, task, partial, sha256)
        size = partial.stat().st_size
        self._store.traffic.add((part.job, part.round), device, up=size)
        try:
            repeated = self._take_masked(job, part, partial, size, sha256)
        except Refusal as refusal:
            self._refuse(part, refusal)
            raise
        if not repeated:
            self._store.wake.set()
        return Receipt(0.0, repeated=repeated)

    def _take_masked(self, job: Job, part: Part, partial: Path, size: int, sha256: str) -> bool:
        """Whether it had come before."""
        self._require_open(part)
        with self._store.database.read() as connection:
            current = rounds.find(connection, job.id, part.round)
            own = [one for one in sums.summands_of(connection, current) if one.place == part.slot]
            if own and own[0].update is not None:
                if own[0].update == sha256:
                    return True
                raise Refusal(409, "stale", "another update of this task was accepted before")
            standing, arrangement, _ = self._of_stage(connection, job, current, part, "update")
        expected = update_size(arrangement, standing.sharers, part.slot, self._sizes(job, part))
        if size != expected:
            raise _unfit(f"its masked update has {size} bytes, not {expected}")
        self._store.blobs.adopt(partial, sha256)
        with self._store.database.write() as connection:
            current = self._lock_open_round(connection, part)
            self._of_stage(connection, job, current, part, "update")
            sums.say(connection, part, "update", sha256)
        return False

    def _sizes(self, job: Job, part: Part) -> dict[int, int]:
        manifest = self._store.bundles.manifest(job.bundle)
        return sizes_of(manifest, carried(self._store, job, part.slot), scores_of(self._store, job))

    # --- what devices are told ---

    def view(self, device: str, task: str) -> bytes:
        """Where a sum stands for one of its devices."""
        part = self._part(device, task)
        job = find_job(self._store, part.job)
        try:
            data = self._view(job, part).encoded()
        except Overtaken as why:
            self._let_go(part, why)
            raise
        self._store.traffic.add((part.job, part.round), device, down=len(data))
        return data

    def _view(self, job: Job, part: Part) -> View:
        if part.state == "accepted":
            return View("over", self._wait(job, part.round), b"")
        self._require_open(part)
        with self._store.database.read() as connection:
            current = rounds.find(connection, job.id, part.round)
            standing = sums.find(connection, current)
            known = sums.summands_of(connection, current)
        if standing is None:
            return View("card", min(_PATIENT, self._store.settings.retry_seconds / 2), b"")
        if part.slot not in _inside(standing):
            raise _too_late(current.number)
        own = next(summand for summand in known if summand.place == part.slot)
        if standing.stage == "over" or (standing.stage == "opening" and own.opening is not None):
            return View("over", self._wait(job, part.round), b"")
        arrangement = arrangement_of(self._store, job, standing, known)
        return View(standing.stage, _SOON, self._told(standing, arrangement, known, part.slot))

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
        """Read what peers in the sum told this one of the sharers, out of their updates."""
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
    """The places that a stage is about."""
    if standing is None:
        return ()
    if standing.stage == "shares":
        return standing.roster
    return standing.sharers if standing.stage == "update" else standing.survivors


def _too_late(number: int) -> Refusal:
    return Overtaken(409, "late", f"the sum of round {number} goes on without this device: check in again")


def _unfit(why: str) -> Refusal:
    return Refusal(422, "invalid", f"the update is refused: {why}")
