"""Collect and validate devices' reports: an accepted one is on disk before its receipt is sent."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from sqlalchemy import Connection

from edge_client.bundle.manifest import Manifest
from edge_client.training.features import Moments
from edge_client.wire.clipping import silent
from edge_client.wire.protocol import EvaluationReport, Receipt, Report
from edge_client.wire.scalars import ScalarError, decode_report, largest_report
from server.errors import Overtaken, Refusal, not_found
from server.jobs.job import Job
from server.rounds.arrivals.updates import largest, read_update
from server.rounds.outcome import late
from server.rounds.outcome.evaluation import task_of
from server.rounds.outcome.usual import Usual, usual_in
from server.rounds.selection.fleet import is_to_measure
from server.rounds.selection.openings import opening_after, wait_until
from server.storage.identities import refusals
from server.storage.jobs import find_job
from server.storage.schema.rows import Assignment, Round, Sent
from server.storage.store import Store
from server.storage.work import assignments, metrics, rounds, scalars
from server.strategy.counts import check_derivatives, check_held_back, held_to
from server.strategy.evaluations import on_devices
from server.strategy.features import unlikely
from server.strategy.outliers import beyond, norms


class Reports:
    """Takes updates, scalars and failures."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._usual = Usual(store.database)

    # --- updates ---

    def largest_update(self, device: str, task: str) -> int:
        """Return the most bytes that an update may have, before any of it is read."""
        assignment = self._assignment(device, task)
        late.require_no_closing(self._store, assignment)
        job = find_job(self._store, assignment.job)
        return largest(self._store.bundles.manifest(job.bundle), assignment.units)

    def take_update(self, device: str, task: str, partial: Path, sha256: str) -> Receipt:
        """Accept an update that was received into a file, or refuse it with a reason."""
        assignment = self._assignment(device, task)
        self._store.traffic.add((assignment.job, assignment.round), device, up=partial.stat().st_size)
        job = find_job(self._store, assignment.job)
        if assignment.state == "accepted" and assignment.sent is not None and assignment.sent.sha256 == sha256:
            return Receipt(self._wait(job, assignment.round), repeated=True)
        try:
            self._require_open(assignment)
            sent = self._validated(job, assignment, partial, sha256)
            self._store.blobs.adopt(partial, sha256)
            self._accept(assignment, sent)
        except Refusal as refusal:
            self._refuse(assignment, refusal)
            raise
        self._store.wake.set()
        return Receipt(self._wait(job, assignment.round))

    def _validated(self, job: Job, assignment: Assignment, partial: Path, sha256: str) -> Sent:
        if job.settings.training.mode != "epoch":
            raise Refusal(422, "invalid", "this job takes derivatives, not weights: its mode is iteration")
        manifest = self._store.bundles.manifest(job.bundle)
        update = read_update(partial, manifest, assignment.units)
        _check_moments(update.moments, manifest)
        with self._store.database.read() as connection:
            version = late.begun_with(assignment, rounds.find(connection, job.id, assignment.round))
        start = self._store.models.load(job, version).weights
        report = held_to(update.report, assignment.declared, job.settings.training, manifest)
        if report.measured and not is_to_measure(self._store, job, assignment.round, assignment.slot, version):
            report = replace(report, measured=0)  # nobody asked: what it tells is left out of the mean
        lengths = norms(update.tensors, start, manifest.head_names, manifest.units)
        if job.settings.is_private:  # what others sent has no say in it, and the clip bounds it
            return Sent(sha256, silent(report), lengths)
        most = job.settings.norm_bound**2  # what is nearer is judged beside the others'
        if beyond(lengths, self._usual.about(job.id, assignment.round), most) and (
            why := beyond(lengths, usual_in(self._store.database, job.id, assignment.round), most)
        ):
            raise Refusal(422, "norm", f"the update is refused: {why}")
        return Sent(sha256, report, lengths)

    def _accept(self, assignment: Assignment, sent: Sent) -> None:
        with self._store.database.write() as connection:
            self._lock_open_round(connection, assignment)
            if not assignments.accept(connection, assignment, sent, self._store.now()):
                raise self._closed(connection, assignment)

    # --- scalars ---

    def largest_scalars(self, device: str, task: str) -> int:
        """Return the most bytes that a report of this task's job may have, before any of it is read."""
        job = find_job(self._store, self._assignment(device, task).job)
        return largest_report(self._store.bundles.manifest(job.bundle), job.settings.training)

    def take_scalars(self, device: str, task: str, iteration: int, data: bytes) -> Receipt:
        assignment = self._assignment(device, task)
        self._store.traffic.add((assignment.job, assignment.round), device, up=len(data))
        job = find_job(self._store, assignment.job)
        try:
            self._require_open(assignment)
            if job.settings.training.mode != "iteration":
                raise Refusal(422, "invalid", "this job takes weights at the end of a round: its mode is epoch")
            try:
                report = decode_report(data, self._store.bundles.manifest(job.bundle), job.settings.training)
                check_derivatives(report)
            except ScalarError as error:
                raise Refusal(422, "invalid", f"the report is refused: {error}") from None
        except Refusal as refusal:
            self._refuse(assignment, refusal)
            raise
        repeated = self._add_scalars(assignment, iteration, data)
        if not repeated:
            self._store.wake.set()
        return Receipt(0.0, repeated=repeated)

    def _add_scalars(self, assignment: Assignment, iteration: int, data: bytes) -> bool:
        """Add a report of an iteration; True if it had been received before."""
        with self._store.database.write() as connection:
            known = scalars.find(connection, assignment, iteration)
            if known is not None:
                if known == data:
                    return True
                raise Refusal(409, "stale", f"another report of iteration {iteration} was accepted before")
            current = self._lock_open_round(connection, assignment)
            if current.iteration != iteration:
                raise Refusal(
                    409, "stale", f"iteration {iteration} is not open, {current.iteration} is: catch up with the steps"
                )
            scalars.add(connection, assignment, iteration, data)
        return False

    def take_evaluation(self, device: str, task: str, evaluation: EvaluationReport) -> Receipt:
        """Among the round's metrics, whether or not the server has closed it; sending another replaces it."""
        assignment = self._assignment(device, task)
        job = find_job(self._store, assignment.job)
        try:
            if assignment.state not in ("open", "accepted"):
                raise self._over(assignment)
            if job.settings.training.mode != "iteration" or not job.settings.device_evaluation:
                raise Refusal(422, "invalid", "this task did not ask its device for measurements")
            told = Report(examples=assignment.declared or 1, steps=job.settings.steps, loss=0.0, **asdict(evaluation))
            check_held_back(told, assignment.declared, job.settings.training, self._store.bundles.manifest(job.bundle))
        except Refusal as refusal:
            self._note(assignment, refusal, device)
            raise
        with self._store.database.write() as connection:
            current = rounds.lock(
                connection, assignment.job, assignment.round
            )  # whoever closes it takes the round first too
            assignments.judge(connection, assignment, told)
            bound, robust = job.settings.weight_bound, job.settings.is_robust
            judged = assignments.judged(connection, current)
            known = on_devices(judged, bound, task_of(self._store, job), robust=robust)
            metrics.replace(connection, current, known)
            rounds.add_to_result(connection, current, known)
        return Receipt(0.0)

    # --- failures ---

    def take_failure(self, device: str, task: str, reason: str) -> Receipt:
        """Note a failed client and give its slot to another."""
        assignment = self._assignment(device, task)
        with self._store.database.write() as connection:
            if assignments.end(connection, assignment, "failed", reason, self._store.now()):
                self._write_down(connection, assignment, device, "failed", reason)
        self._store.turn += 1
        return Receipt(self._store.settings.retry_seconds)

    # --- whose it is, and whether it still counts ---

    def _assignment(self, device: str, task: str) -> Assignment:
        with self._store.database.read() as connection:
            assignment = assignments.find(connection, task)
        if assignment is None:
            raise not_found("task", task[:40], "a check-in")
        if assignment.device != device:
            refusal = Refusal(403, "foreign", "the task is another device's; check in for one of your own")
            self._note(assignment, refusal, device)
            raise refusal
        return assignment

    def _require_open(self, assignment: Assignment) -> None:
        if assignment.state != "open":
            raise self._over(assignment)

    def _over(self, assignment: Assignment) -> Refusal:
        """Return the refusal for an assignment that has ended."""
        why = "another update of this task was accepted before" if assignment.sent is not None else assignment.reason
        detail = (
            f"round {assignment.round} takes nothing more for this task{f' ({why})' if why else ''}: check in again"
        )
        without = assignment.state == "spare" or (
            assignment.state == "accepted" and assignment.sent is None
        )  # or with its steps
        kind = Overtaken if without else Refusal
        return kind(409, "late", detail)

    def _closed(self, connection: Connection, assignment: Assignment) -> Refusal:
        """Return the refusal for an assignment whose round is being closed, or was since it was read."""
        assignment = assignments.find(connection, assignment.id) or assignment
        if assignment.state == "open":
            assignment = replace(
                assignment, state=rounds.find(connection, assignment.job, assignment.round).leaves(self._store.now())
            )
        return self._over(assignment)

    def _lock_open_round(self, connection: Connection, assignment: Assignment) -> Round:
        """Lock the assignment's round, so that it stays open until this transaction ends."""
        if assignment.base is not None:
            assignment = (
                assignments.find(connection, assignment.id) or assignment
            )  # the next round may have taken it over meanwhile
        current = rounds.lock_open(connection, assignment.job, assignment.round)
        if current is None:
            late.wait_for_next(assignment)
            raise self._closed(connection, assignment)
        return current

    def _refuse(self, assignment: Assignment, refusal: Refusal) -> None:
        """Count a refusal; a device's own mistake costs it the task, so that another can have the slot."""
        if refusal.status == late.BUSY:
            return
        with self._store.database.write() as connection:
            if refusal.status == 422:
                assignments.end(connection, assignment, "refused", refusal.detail, self._store.now())
        self._store.turn += 1
        self._note(assignment, refusal, assignment.device)

    def note_oversized(self, device: str, task: str, refusal: Refusal) -> None:
        self._note(self._assignment(device, task), refusal, device)

    def _note(self, assignment: Assignment, refusal: Refusal, device: str) -> None:
        if isinstance(refusal, Overtaken):
            return
        with self._store.database.write() as connection:
            self._write_down(connection, assignment, device, refusal.code, refusal.detail)

    def _write_down(self, connection: Connection, assignment: Assignment, device: str, code: str, detail: str) -> None:
        """Record a refusal or failure for people; too many of one device are answered with a wait."""
        now = self._store.now()
        if (wait := refusals.wait_of(connection, device, now)) is not None:
            why = f"more than {refusals.A_MINUTE} refusals and failures of this device in a minute: wait {wait:.0f} s"
            raise Refusal(429, "busy", why, retry_after=wait)
        refusals.add(connection, assignment, device, code, detail, now)

    def _wait(self, job: Job, number: int) -> float:
        """Return when to come back: for some of a large fleet for the next round, for others as for all devices."""
        store, now = self._store, self._store.now()
        with store.database.read() as connection:
            opening = opening_after(connection, job, number, now)
        soon = None if opening is None else wait_until(opening, store.presence, now)
        return store.presence.wait() if soon is None else min(soon, store.settings.retry_seconds)


def _check_moments(moments: Moments, manifest: Manifest) -> None:
    if manifest.features is not None and (why := unlikely(moments, manifest.features)):
        raise Refusal(422, "norm", f"the update is refused: {why}")
