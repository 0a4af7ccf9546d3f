"""Numbers for Prometheus, read from the database when they are asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import func, select

from edge_client import __version__
from server.control import views
from server.jobs.jobs import ENDED, list_jobs
from server.storage.store import Store
from server.storage.tables import devices, jobs, refusals, rounds, tasks, traffic

_RECENT = 300.0


class _Collector:
    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        yield _gauge("spry_build", "The version that runs.", ["version"], [(__version__, 1)])
        yield from self._counts()
        yield from self._jobs()
        disk = shutil.disk_usage(self._store.folder)
        yield _gauge("spry_disk_bytes", "The disk of the data folder.", ["which"],
                     [("size", disk.total), ("free", disk.free)])  # fmt: skip

    def _counts(self) -> Iterator[Metric]:
        with self._store.database.read() as connection:
            by_state = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state)).all()
            yield _gauge("spry_jobs", "Jobs by state.", ["state"], by_state)
            counted = select(rounds.c.state, func.count()).group_by(rounds.c.state)
            yield _gauge("spry_rounds", "Rounds by state.", ["state"], connection.execute(counted).all())
            counted = select(tasks.c.state, func.count()).group_by(tasks.c.state)
            yield _gauge("spry_tasks", "Tasks by state.", ["state"], connection.execute(counted).all())
            counted = select(refusals.c.code, func.count()).group_by(refusals.c.code)
            refused = CounterMetricFamily("spry_refusals", "Reports that were not taken, by code.", labels=["code"])
            for code, count in connection.execute(counted):
                refused.add_metric([code], count)
            yield refused
            moved = CounterMetricFamily("spry_bytes", "Bytes that devices sent and fetched.", labels=["direction"])
            totals = connection.execute(select(func.sum(traffic.c.up), func.sum(traffic.c.down))).one()
            for direction, total in zip(("up", "down"), totals, strict=True):
                moved.add_metric([direction], float(total or 0))
            yield moved
            known = connection.scalar(select(func.count()).where(devices.c.revoked.is_(False))) or 0
            since = self._store.now() - _RECENT
            seen = connection.scalar(select(func.count()).where(devices.c.last_seen > since)) or 0
            yield _gauge("spry_devices", "Devices enrolled, and seen within five minutes.", ["which"],
                         [("enrolled", known), ("seen", seen)])  # fmt: skip

    def _jobs(self) -> Iterator[Metric]:
        found = [views.job(self._store, job) for job in list_jobs(self._store)]
        metrics = [(job.name, *item) for job in found for item in job.metrics.items()]
        yield _gauge("spry_job", "Newest value of each of a job's metrics; `seconds` is a round's duration.",
                     ["job", "metric"], metrics)  # fmt: skip
        done = [(job.name, "done", job.done) for job in found]
        asked = [(job.name, "asked", job.settings.rounds) for job in found]
        yield _gauge("spry_job_rounds", "Rounds that moved the weights, and how many are asked for.",
                     ["job", "which"], done + asked)  # fmt: skip
        newest = [(job.name, job.progress) for job in found if job.state != ENDED and job.progress]
        numbers = [(name, round_.number) for name, round_ in newest]
        yield _gauge("spry_round_number", "The newest round of a job that has not ended.", ["job"], numbers)
        reports = [(name, which, getattr(round_, which))
                   for name, round_ in newest for which in ("training", "reported", "wanted")]  # fmt: skip
        yield _gauge("spry_round_reports", "Of that round: devices that train, reports that came and are wanted.",
                     ["job", "which"], reports)  # fmt: skip


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[Iterable[object]]) -> GaugeMetricFamily:
    found = GaugeMetricFamily(name, text, labels=labels)
    for row in rows:
        *values, number = row
        found.add_metric([str(value) for value in values], float(str(number)))
    return found


def exposition(store: Store) -> bytes:
    """All of it, and the memory and files of the process that answers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(store))  # type: ignore[arg-type]
    ProcessCollector(registry=registry)
    return generate_latest(registry)
