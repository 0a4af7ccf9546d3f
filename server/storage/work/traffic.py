"""Count the bytes that each device sent and fetched, by job and round.

Counted are the bodies that grow with the model: updates and scalars up; weights, steps and bundles' files down.
Check-ins, enrolments, receipts and refusals are a few hundred bytes each and are left out. A bundle's file belongs to
no round: it stands as round 0, under the job whose task the device has, or under no job ("").

A process counts in memory and adds to the database now and then, so that requests pay nothing for it; killed, it
forgets what it counted in the last seconds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects import postgresql, sqlite

from server.storage.schema.database import Database
from server.storage.schema.rows import Volume
from server.storage.schema.tables import traffic
from server.storage.work import assignments

Where = tuple[str, int]
"""A job and a round of it."""


class Traffic:
    """Counts the bytes of one process; what all of them counted is in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._up: Counter[tuple[str, int, str]] = Counter()
        self._down: Counter[tuple[str, int, str]] = Counter()
        self._lock = threading.Lock()
        self._saving = threading.Lock()

    def add(self, where: Where, device: str, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self._up[(*where, device)] += up
            self._down[(*where, device)] += down

    def save(self) -> None:
        """Add what was counted since the last time; when it returns, all of that is in the database."""
        with self._saving:  # what another thread has taken is not there before it is committed
            self._save()

    def _save(self) -> None:
        with self._lock:
            up, down = self._up, self._down
            self._up, self._down = Counter(), Counter()
        rows = [
            {"job": job, "round": number, "device": device, "up": up[key], "down": down[key]}
            for key in sorted(up.keys() | down.keys())  # in one order: two workers must not wait for each other
            for job, number, device in [key]
        ]
        if not rows:
            return
        try:
            with self._database.write() as connection:
                connection.execute(self._adding(), rows)
        except BaseException:
            with self._lock:  # for the next time
                self._up.update(up)
                self._down.update(down)
            raise

    def _adding(self) -> Any:
        statement = (sqlite if self._database.is_sqlite else postgresql).insert(traffic)
        return statement.on_conflict_do_update(
            index_elements=traffic.primary_key.columns,
            set_={name: traffic.c[name] + statement.excluded[name] for name in ("up", "down")},
        )

    # --- what a request belongs to ---

    def of_task(self, device: str) -> Where:
        """Return the job of the task that a device has."""
        with self._database.read() as connection:
            assignment = assignments.find_open(connection, device)
        return "" if assignment is None else assignment.job, 0

    def of_round(self, device: str, job: str, newest: int) -> Where:
        """Return the round of a job that a device takes part in, or was in until a moment ago; 0 if it is in none."""
        with self._database.read() as connection:
            return job, assignments.newest_round(connection, device, job, since=newest - 1) or 0


# --- what was counted: steps of their caller's transaction -----------------------------------------------------------


def total(connection: Connection, job: str | None = None) -> Volume:
    """Sum the bytes of a job, or of all."""
    query = select(func.sum(traffic.c.up), func.sum(traffic.c.down))
    if job is not None:
        query = query.where(traffic.c.job == job)
    return _volume(*connection.execute(query).one())


def count_senders(connection: Connection, job: str) -> int:
    """Count the devices that have sent anything for a job."""
    return (
        connection.scalar(select(func.count(traffic.c.device.distinct())).where(traffic.c.job == job, traffic.c.up > 0))
        or 0
    )


def by_device(connection: Connection, among: Collection[str] | None = None) -> dict[str, Volume]:
    """Sum over all jobs; over these devices alone, where they are named."""
    query = select(traffic.c.device, func.sum(traffic.c.up), func.sum(traffic.c.down)).group_by(traffic.c.device)
    if among is not None:
        query = query.where(traffic.c.device.in_(among))
    return {device: _volume(up, down) for device, up, down in connection.execute(query)}


def of_device(connection: Connection, device: str) -> Volume:
    """Add up a device's traffic over all jobs."""
    query = select(func.sum(traffic.c.up), func.sum(traffic.c.down)).where(traffic.c.device == device)
    return _volume(*connection.execute(query).one())


def by_round(connection: Connection, job: str) -> dict[int, Volume]:
    """Sum a job's bytes by round, in their order."""
    query = (
        select(traffic.c.round, func.sum(traffic.c.up), func.sum(traffic.c.down))
        .where(traffic.c.job == job)
        .group_by(traffic.c.round)
        .order_by(traffic.c.round)
    )
    return {number: _volume(up, down) for number, up, down in connection.execute(query)}


def by_round_and_device(connection: Connection, job: str) -> dict[tuple[int, str], Volume]:
    """Return a job's bytes in the order of the rounds, and of the devices' ids."""
    query = select(traffic).where(traffic.c.job == job).order_by(traffic.c.round, traffic.c.device)
    return {(row.round, row.device): Volume(row.up, row.down) for row in connection.execute(query)}


def _volume(up: Any, down: Any) -> Volume:
    """Sums are null where there is nothing, and decimals on PostgreSQL."""
    return Volume(int(up or 0), int(down or 0))
