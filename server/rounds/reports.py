"""Collect and validate: what devices send back. An accepted report is on disk before its receipt is sent."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from edge_client.wire.protocol import Receipt
from edge_client.wire.scalars import ScalarError, decode_report
from server.errors import Refusal, not_found
from server.jobs.jobs import Job, find_job
from server.rounds.outliers import Norms, beyond, norms, usual_in
from server.rounds.updates import largest, parameters_of, read_update
from server.storage.models import head_names
from server.storage.store import Store
from server.storage.tables import refusals, rounds, scalars, tasks


class Reports:
    """Takes updates, scalars and failures."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- updates ---

    def largest_update(self, device: str, task: str) -> int:
        """How many bytes an update may have, before any of it is read."""
        row = self._task(device, task)
        job = find_job(self._store, row.job)
        return largest(self._store.bundles.manifest(job.bundle), row.units)

    def take_update(self, device: str, task: str, partial: Path, sha256: str) -> Receipt:
        """Accept an update that was received into a file, or refuse it with a reason."""
        row = self._task(device, task)
        self._store.traffic.add((row.job, row.round), device, up=partial.stat().st_size)
        job = find_job(self._store, row.job)
        if row.state == "accepted" and row.update == sha256:
            return Receipt(self._wait(job, row.round), repeated=True)
        try:
            self._require_open(row)
            report, found = self._validated(job, row, partial)
            self._store.blobs.adopt(partial, sha256)
            self._accept(row, {"state": "accepted", "update": sha256, "report": report, "norms": found})
        except Refusal as refusal:
            self._refuse(row, refusal)
            raise
        self._store.wake.set()
        return Receipt(self._wait(job, row.round))

    def _validated(self, job: Job, row: Row[Any], partial: Path) -> tuple[dict[str, Any], Norms]:
        if job.settings.training.mode != "epoch":
            raise Refusal(422, "invalid", "this job takes derivatives, not weights: its mode is iteration")
        manifest = self._store.bundles.manifest(job.bundle)
        update_ = read_update(partial, parameters_of(manifest, row.units))
        with self._store.database.read() as connection:
            version = connection.scalar(
                select(rounds.c.version).where(rounds.c.job == job.id, rounds.c.number == row.round)
            )
        start = self._store.models.load(job, int(version or 0)).weights
        found = norms(update_.tensors, start, head_names(manifest))
        known = usual_in(self._store.database, job.id, row.round)
        if why := beyond(found, known, job.settings.norm_bound):
            raise Refusal(422, "norm", f"the update is refused: {why}")
        return asdict(update_.report), found

    def _accept(self, row: Row[Any], values: dict[str, Any]) -> None:
        with self._store.database.write() as connection:
            self._lock_open_round(connection, row)
            done = connection.execute(
                update(tasks)
                .where(tasks.c.id == row.id, tasks.c.state == "open")
                .values(ended=self._store.now(), **values)
            ).rowcount
            if not done:
                raise self._over(row)

    # --- scalars ---

    def take_scalars(self, device: str, task: str, iteration: int, data: bytes) -> Receipt:
        row = self._task(device, task)
        self._store.traffic.add((row.job, row.round), device, up=len(data))
        job = find_job(self._store, row.job)
        try:
            self._require_open(row)
            if job.settings.training.mode != "iteration":
                raise Refusal(422, "invalid", "this job takes weights at the end of a round: its mode is epoch")
            try:
                decode_report(data, self._store.bundles.manifest(job.bundle), job.settings.training)
            except ScalarError as error:
                raise Refusal(422, "invalid", f"the report is refused: {error}") from None
        except Refusal as refusal:
            self._refuse(row, refusal)
            raise
        repeated = self._add_scalars(row, iteration, data)
        if not repeated:
            self._store.wake.set()
        return Receipt(0.0, repeated=repeated)

    def _add_scalars(self, row: Row[Any], iteration: int, data: bytes) -> bool:
        key = scalars.c.task == row.id, scalars.c.iteration == iteration
        with self._store.database.write() as connection:
            known = connection.scalar(select(scalars.c.report).where(*key))
            if known is not None:
                if bytes(known) == data:
                    return True
                raise Refusal(409, "stale", f"another report of iteration {iteration} was accepted before")
            current = self._lock_open_round(connection, row)
            if current.iteration != iteration:
                raise Refusal(
                    409, "stale", f"iteration {iteration} is not open, {current.iteration} is: catch up with the steps"
                )
            connection.execute(
                insert(scalars).values(task=row.id, iteration=iteration, job=row.job, round=row.round, report=data)
            )
        return False

    # --- failures ---

    def take_failure(self, device: str, task: str, reason: str) -> Receipt:
        """A failed client is data: its place goes to another."""
        row = self._task(device, task)
        with self._store.database.write() as connection:
            connection.execute(
                update(tasks)
                .where(tasks.c.id == row.id, tasks.c.state == "open")
                .values(state="failed", reason=reason, ended=self._store.now())
            )
        self._store.turn += 1
        return Receipt(self._store.settings.retry_seconds)

    # --- whose it is, and whether it still counts ---

    def _task(self, device: str, task: str) -> Row[Any]:
        with self._store.database.read() as connection:
            row = connection.execute(select(tasks).where(tasks.c.id == task)).one_or_none()
        if row is None:
            raise not_found("task", task[:40], "a check-in")
        if row.device != device:
            refusal = Refusal(403, "foreign", "the task is another device's; check in for one of your own")
            self._note(row, refusal, device)
            raise refusal
        return row

    def _require_open(self, row: Row[Any]) -> None:
        if row.state != "open":
            raise self._over(row)

    def _over(self, row: Row[Any]) -> Refusal:
        why = {"accepted": "another update of this task was accepted before"}.get(row.state, row.reason)
        detail = f"round {row.round} takes nothing more for this task{f' ({why})' if why else ''}: check in again"
        return Refusal(409, "late", detail)

    def _lock_open_round(self, connection: Connection, row: Row[Any]) -> Row[Any]:
        """The round stays open until this transaction ends."""
        query = select(rounds).where(rounds.c.job == row.job, rounds.c.number == row.round, rounds.c.state == "open")
        current = connection.execute(query.with_for_update()).one_or_none()
        if current is None:
            raise self._over(row)
        return current

    def _refuse(self, row: Row[Any], refusal: Refusal) -> None:
        """Count it; what a device got wrong itself costs it the task, so that another can have the place."""
        with self._store.database.write() as connection:
            if refusal.status == 422:
                connection.execute(
                    update(tasks)
                    .where(tasks.c.id == row.id, tasks.c.state == "open")
                    .values(state="refused", reason=refusal.detail, ended=self._store.now())
                )
        self._store.turn += 1
        self._note(row, refusal, row.device)

    def note_oversized(self, device: str, task: str, refusal: Refusal) -> None:
        self._note(self._task(device, task), refusal, device)

    def _note(self, row: Row[Any], refusal: Refusal, device: str) -> None:
        with self._store.database.write() as connection:
            connection.execute(
                insert(refusals).values(
                    time=self._store.now(),
                    device=device,
                    job=row.job,
                    round=row.round,
                    task=row.id,
                    code=refusal.code,
                    detail=refusal.detail,
                )
            )

    def _wait(self, job: Job, number: int) -> float:
        """About when the round after this one opens, by how long the last one took."""
        query = select(rounds.c.started, rounds.c.closed, rounds.c.number).where(
            rounds.c.job == job.id, rounds.c.number >= number - 1
        )
        with self._store.database.read() as connection:
            known = {row.number: row for row in connection.execute(query)}
        last, this = known.get(number - 1), known.get(number)
        if last is None or last.closed is None or last.started is None or this is None or this.started is None:
            return min(1.0, self._store.settings.retry_seconds)
        left = (last.closed - last.started) - (self._store.now() - this.started)
        return max(0.0, min(left, self._store.settings.retry_seconds))
