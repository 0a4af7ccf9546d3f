"""Collect and validate: what devices send back. An accepted report is on disk before its receipt is sent."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from sqlalchemy import Connection

from edge_client.bundle.manifest import Manifest
from edge_client.training.features import Moments
from edge_client.wire.clipping import silent
from edge_client.wire.protocol import Judgement, Receipt, Report
from edge_client.wire.scalars import ScalarError, decode_report, largest_report
from server.errors import Overtaken, Refusal, not_found
from server.jobs.job import Job
from server.rounds.arrivals.updates import largest, read_update
from server.rounds.outcome import late
from server.rounds.outcome.counts import check_derivatives, check_held_back, held_to
from server.rounds.outcome.evaluation import on_devices, task_of
from server.rounds.outcome.usual import Usual, usual_in
from server.rounds.places.fleet import is_to_measure
from server.rounds.places.openings import opening_after, wait_until
from server.storage.identities import refusals
from server.storage.jobs import find_job
from server.storage.schema.rows import Part, Round, Sent
from server.storage.store import Store
from server.storage.work import metrics, parts, rounds, scalars
from server.strategy.features import unlikely
from server.strategy.outliers import beyond, norms


class Reports:
    """Takes updates, scalars and failures."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._usual = Usual(store.database)

    # --- updates ---

    def largest_update(self, device: str, task: str) -> int:
        """How many bytes an update may have, before any of it is read."""
        part = self._part(device, task)
        late.require_no_closing(self._store, part)
        job = find_job(self._store, part.job)
        return largest(self._store.bundles.manifest(job.bundle), part.units)

    def take_update(self, device: str, task: str, partial: Path, sha256: str) -> Receipt:
        """Accept an update that was received into a file, or refuse it with a reason."""
        part = self._part(device, task)
        self._store.traffic.add((part.job, part.round), device, up=partial.stat().st_size)
        job = find_job(self._store, part.job)
        if part.state == "accepted" and part.sent is not None and part.sent.sha256 == sha256:
            return Receipt(self._wait(job, part.round), repeated=True)
        try:
            self._require_open(part)
            sent = self._validated(job, part, partial, sha256)
            self._store.blobs.adopt(partial, sha256)
            self._accept(part, sent)
        except Refusal as refusal:
            self._refuse(part, refusal)
            raise
        self._store.wake.set()
        return Receipt(self._wait(job, part.round))

    def _validated(self, job: Job, part: Part, partial: Path, sha256: str) -> Sent:
        if job.settings.training.mode != "epoch":
            raise Refusal(422, "invalid", "this job takes derivatives, not weights: its mode is iteration")
        manifest = self._store.bundles.manifest(job.bundle)
        update = read_update(partial, manifest, part.units)
        _check_moments(update.moments, manifest)
        with self._store.database.read() as connection:
            version = late.begun_with(part, rounds.find(connection, job.id, part.round))
        start = self._store.models.load(job, version).weights
        report = held_to(update.report, part.declared, job.settings.training, manifest)
        if not is_to_measure(self._store, job, part.slot, version):
            report = replace(report, measured=0)  # nobody asked: what it tells is left out of the mean
        lengths = norms(update.tensors, start, manifest.head_names, manifest.units)
        if job.settings.is_private:  # what others sent has no say in it, and the clip bounds it
            return Sent(sha256, silent(report), lengths)
        most = job.settings.norm_bound**2  # what is nearer is judged beside the others'
        if beyond(lengths, self._usual.about(job.id, part.round), most) and (
            why := beyond(lengths, usual_in(self._store.database, job.id, part.round), most)
        ):
            raise Refusal(422, "norm", f"the update is refused: {why}")
        return Sent(sha256, report, lengths)

    def _accept(self, part: Part, sent: Sent) -> None:
        with self._store.database.write() as connection:
            self._lock_open_round(connection, part)
            if not parts.accept(connection, part, sent, self._store.now()):
                raise self._closed(connection, part)

    # --- scalars ---

    def largest_scalars(self, device: str, task: str) -> int:
        """How many bytes a report of this task's job may have, before any of it is read."""
        job = find_job(self._store, self._part(device, task).job)
        return largest_report(self._store.bundles.manifest(job.bundle), job.settings.training)

    def take_scalars(self, device: str, task: str, iteration: int, data: bytes) -> Receipt:
        part = self._part(device, task)
        self._store.traffic.add((part.job, part.round), device, up=len(data))
        job = find_job(self._store, part.job)
        try:
            self._require_open(part)
            if job.settings.training.mode != "iteration":
                raise Refusal(422, "invalid", "this job takes weights at the end of a round: its mode is epoch")
            try:
                report = decode_report(data, self._store.bundles.manifest(job.bundle), job.settings.training)
                check_derivatives(report)
            except ScalarError as error:
                raise Refusal(422, "invalid", f"the report is refused: {error}") from None
        except Refusal as refusal:
            self._refuse(part, refusal)
            raise
        repeated = self._add_scalars(part, iteration, data)
        if not repeated:
            self._store.wake.set()
        return Receipt(0.0, repeated=repeated)

    def _add_scalars(self, part: Part, iteration: int, data: bytes) -> bool:
        """Whether they had come before."""
        with self._store.database.write() as connection:
            known = scalars.find(connection, part, iteration)
            if known is not None:
                if known == data:
                    return True
                raise Refusal(409, "stale", f"another report of iteration {iteration} was accepted before")
            current = self._lock_open_round(connection, part)
            if current.iteration != iteration:
                raise Refusal(
                    409, "stale", f"iteration {iteration} is not open, {current.iteration} is: catch up with the steps"
                )
            scalars.add(connection, part, iteration, data)
        return False

    def take_judgement(self, device: str, task: str, judgement: Judgement) -> Receipt:
        """Among the round's metrics, whether or not the server has closed it; sending another replaces it."""
        part = self._part(device, task)
        job = find_job(self._store, part.job)
        try:
            if part.state not in ("open", "accepted"):
                raise self._over(part)
            if job.settings.training.mode != "iteration" or not job.settings.device_evaluation:
                raise Refusal(422, "invalid", "nobody asked this task's device for what it measures")
            told = Report(examples=part.declared or 1, steps=job.settings.steps, loss=0.0, **asdict(judgement))
            check_held_back(told, part.declared, job.settings.training, self._store.bundles.manifest(job.bundle))
        except Refusal as refusal:
            self._note(part, refusal, device)
            raise
        with self._store.database.write() as connection:
            current = rounds.lock(connection, part.job, part.round)  # whoever closes it takes the round first too
            parts.judge(connection, part, told)
            bound, robust = job.settings.weight_bound, job.settings.is_robust
            judged = parts.judged(connection, current)
            known = on_devices(judged, bound, task_of(self._store, job), robust=robust)
            metrics.replace(connection, current, known)
            rounds.add_to_result(connection, current, known)
        return Receipt(0.0)

    # --- failures ---

    def take_failure(self, device: str, task: str, reason: str) -> Receipt:
        """A failed client is data: its place goes to another."""
        part = self._part(device, task)
        with self._store.database.write() as connection:
            if parts.end(connection, part, "failed", reason, self._store.now()):
                self._write_down(connection, part, device, "failed", reason)
        self._store.turn += 1
        return Receipt(self._store.settings.retry_seconds)

    # --- whose it is, and whether it still counts ---

    def _part(self, device: str, task: str) -> Part:
        with self._store.database.read() as connection:
            part = parts.find(connection, task)
        if part is None:
            raise not_found("task", task[:40], "a check-in")
        if part.device != device:
            refusal = Refusal(403, "foreign", "the task is another device's; check in for one of your own")
            self._note(part, refusal, device)
            raise refusal
        return part

    def _require_open(self, part: Part) -> None:
        if part.state != "open":
            raise self._over(part)

    def _over(self, part: Part) -> Refusal:
        """For a part that has ended."""
        why = "another update of this task was accepted before" if part.sent is not None else part.reason
        detail = f"round {part.round} takes nothing more for this task{f' ({why})' if why else ''}: check in again"
        without = part.state == "spare" or (part.state == "accepted" and part.sent is None)  # or with its steps
        kind = Overtaken if without else Refusal
        return kind(409, "late", detail)

    def _closed(self, connection: Connection, part: Part) -> Refusal:
        """For a part whose round is being closed, or was since it was read."""
        part = parts.find(connection, part.id) or part
        if part.state == "open":
            part = replace(part, state=rounds.find(connection, part.job, part.round).leaves(self._store.now()))
        return self._over(part)

    def _lock_open_round(self, connection: Connection, part: Part) -> Round:
        """The round stays open until this transaction ends."""
        if part.base is not None:
            part = parts.find(connection, part.id) or part  # the next round may have taken it over meanwhile
        current = rounds.lock_open(connection, part.job, part.round)
        if current is None:
            late.wait_for_next(part)
            raise self._closed(connection, part)
        return current

    def _refuse(self, part: Part, refusal: Refusal) -> None:
        """Count it; what a device got wrong itself costs it the task, so that another can have the place."""
        if refusal.status == late.BUSY:
            return
        with self._store.database.write() as connection:
            if refusal.status == 422:
                parts.end(connection, part, "refused", refusal.detail, self._store.now())
        self._store.turn += 1
        self._note(part, refusal, part.device)

    def note_oversized(self, device: str, task: str, refusal: Refusal) -> None:
        self._note(self._part(device, task), refusal, device)

    def _note(self, part: Part, refusal: Refusal, device: str) -> None:
        if isinstance(refusal, Overtaken):
            return
        with self._store.database.write() as connection:
            self._write_down(connection, part, device, refusal.code, refusal.detail)

    def _write_down(self, connection: Connection, part: Part, device: str, code: str, detail: str) -> None:
        """Keep it, for people; a device that is refused again and again is told to wait and fills no database."""
        now = self._store.now()
        if (wait := refusals.wait_of(connection, device, now)) is not None:
            why = f"more than {refusals.A_MINUTE} refusals and failures of this device in a minute: wait {wait:.0f} s"
            raise Refusal(429, "busy", why, retry_after=wait)
        refusals.add(connection, part, device, code, detail, now)

    def _wait(self, job: Job, number: int) -> float:
        """When to come back: some of a large fleet for the round after this one, the others as all devices."""
        store, now = self._store, self._store.now()
        with store.database.read() as connection:
            opening = opening_after(connection, job, number, now)
        soon = None if opening is None else wait_until(opening, store.presence, now)
        return store.presence.wait() if soon is None else min(soon, store.settings.retry_seconds)


def _check_moments(moments: Moments, manifest: Manifest) -> None:
    if manifest.features is not None and (why := unlikely(moments, manifest.features)):
        raise Refusal(422, "norm", f"the update is refused: {why}")
