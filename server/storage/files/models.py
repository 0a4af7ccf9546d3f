"""The weights of jobs, version by version.

Version 0 is the bundle's initial adapter. In mode epoch every round that moves the weights writes a version; in mode
iteration every step does, as a record, and the weights themselves are kept at the end of each round.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sqlalchemy import Connection, delete, insert, select, update

from edge_client.arrays import Weights
from edge_client.wire.scalars import StepRecord, decode_records
from server.errors import Refusal
from server.jobs.job import Job
from server.storage.files import references
from server.storage.files.blobs import Blobs
from server.storage.files.bundles import BundleFiles
from server.storage.schema.database import Database
from server.storage.schema.tables import steps, versions
from server.strategy.state import ServerState, apply_record


class Models:
    """Reads and writes versions; keeps each job's newest in memory."""

    def __init__(self, database: Database, blobs: Blobs, bundles: BundleFiles) -> None:
        self._database = database
        self._blobs = blobs
        self._bundles = bundles
        self._newest: dict[str, ServerState] = {}
        self._announced: dict[str, int] = {}
        self._lock = threading.Lock()

    def load(self, job: Job, version: int) -> ServerState:
        with self._lock:
            model = self._newest.get(job.id)
        if model is None or model.version != version:
            model = self._read(job, version, model)
            self.remember(job.id, model)
        return model

    def remember(self, job: str, model: ServerState) -> None:
        with self._lock:
            held = self._newest.get(job)
            if held is None or held.version < model.version:
                self._newest[job] = model

    def announce(self, job: str, version: int) -> None:
        """Tell those who wait in this process that a version was published, here or by another worker."""
        self._announced[job] = version

    def announced(self, job: str) -> int:
        return self._announced.get(job, 0)

    def _read(self, job: Job, version: int, held: ServerState | None) -> ServerState:
        manifest = self._bundles.manifest(job.bundle)
        model = self._checkpoint(job, version)
        if held is not None and model.version <= held.version <= version:
            model = held
        for record in self.records(job, model.version, version):
            model = apply_record(model, record, job.settings, manifest)
        if model.version != version:
            raise Refusal(410, "stale", f"version {version} of job {job.name} is not kept; the newest is {job.version}")
        return model

    def _checkpoint(self, job: Job, version: int) -> ServerState:
        """Load the newest kept weights up to this version."""
        query = (
            select(versions)
            .where(versions.c.job == job.id, versions.c.version <= version, versions.c.weights.is_not(None))
            .order_by(versions.c.version.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return ServerState(0, self.initial(job))
        return ServerState.read(row.version, self._blobs.tensors(row.weights), self._blobs.tensors(row.optimizer))

    def initial(self, job: Job) -> Weights:
        bundle = self._bundles.open(job.bundle)
        adapter = bundle.initial_adapter()
        return {parameter.name: adapter[parameter.name] for parameter in bundle.manifest.trained}

    def records(self, job: Job, since: int, until: int | None = None) -> list[StepRecord]:
        return [record for data in self.record_bytes(job, since, until) for record in decode_records(data)]

    def record_bytes(self, job: Job, since: int, until: int | None = None) -> list[bytes]:
        """Return the steps after a version, in order."""
        query = select(steps.c.record).where(steps.c.job == job.id, steps.c.version > since).order_by(steps.c.version)
        if until is not None:
            query = query.where(steps.c.version <= until)
        with self._database.read() as connection:
            return [bytes(data) for data in connection.execute(query).scalars()]

    def published(self, job: str, version: int) -> float:
        """Return the time at which a version was published, unique for each; 0 where it is not kept."""
        query = select(versions.c.created).where(versions.c.job == job, versions.c.version == version)
        with self._database.read() as connection:
            return float(connection.execute(query).scalar() or 0.0)

    def changed_since(self, job: Job, since: int) -> set[str] | None:
        """Return the parameters that moved in the rounds after a version (mode epoch); None where that is not kept."""
        after = versions.c.version > since, versions.c.version <= job.version
        query = select(versions.c.changed).where(versions.c.job == job.id, *after)
        with self._database.read() as connection:
            changes = connection.execute(query).scalars().all()
        return {name for names in changes for name in names} if len(changes) == job.version - since else None

    # --- writing, within the transaction that publishes ---

    def stored(self, model: ServerState) -> tuple[str, str]:
        """Write weights and state as blobs, before that transaction."""
        return self._blobs.put_tensors(model.weights), self._blobs.put_tensors(model.arrays())

    def add_version(
        self,
        connection: Connection,
        job: str,
        version: int,
        blobs: tuple[str, str],
        changed: Iterable[str],
        *,
        number: int,
        now: float,
    ) -> None:
        connection.execute(
            insert(versions).values(
                job=job,
                version=version,
                round=number,
                weights=blobs[0],
                optimizer=blobs[1],
                changed=sorted(changed),
                created=now,
            )
        )

    def restore(self, connection: Connection, job: str, number: int, version: int, now: float) -> bool:
        """Make the weights that a round ended with the newest version; False where they are, or are not kept."""
        of_job = select(versions).where(versions.c.job == job).order_by(versions.c.version.desc())
        newest = connection.execute(of_job.limit(1)).one()
        best = connection.execute(of_job.where(versions.c.round == number).limit(1)).one_or_none()
        if best is None or best.weights is None or best.weights == newest.weights:
            return False
        later = select(versions.c.changed).where(versions.c.job == job, versions.c.version > best.version)
        changed = {name for names in connection.execute(later).scalars() for name in names}
        blobs = best.weights, best.optimizer
        self.add_version(connection, job, version, blobs, changed, number=number, now=now)
        return True

    def round_of(self, connection: Connection, job: str, version: int) -> int | None:
        """Find the round whose weights a version has."""
        query = select(versions.c.round).where(versions.c.job == job, versions.c.version == version)
        return connection.execute(query).scalar_one_or_none()

    def add_step(self, connection: Connection, job: str, record: StepRecord, data: bytes) -> None:
        connection.execute(
            insert(steps).values(
                job=job, version=record.version, round=record.round, iteration=record.iteration, record=data
            )
        )

    def forget(self, job: str, keep: int) -> None:
        """Drop the weights of all rounds but the newest `keep`, and the steps that lead to them."""
        of_job = select(versions).where(versions.c.job == job, versions.c.weights.is_not(None))
        with self._database.write() as connection:
            rows = connection.execute(of_job.order_by(versions.c.version.desc())).all()
            kept, old = rows[:keep], rows[keep:]
            if not old:
                return
            used = {sha for row in kept for sha in (row.weights, row.optimizer)}
            oldest = kept[-1].version
            connection.execute(
                update(versions)
                .where(versions.c.job == job, versions.c.version < oldest)
                .values(weights=None, optimizer=None)
            )
            connection.execute(delete(steps).where(steps.c.job == job, steps.c.version <= oldest))
        for sha in {sha for row in old for sha in (row.weights, row.optimizer)} - used:
            with self._database.read() as connection:
                is_kept = references.is_kept(connection, sha)
            if not is_kept:
                self._blobs.forget(sha)
