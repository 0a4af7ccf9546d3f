"""Numbers for Prometheus, read from the database when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import func, select

from server.store import Store
from server.tables import devices, jobs, metrics, refusals, rounds, tasks, traffic

_RECENT = 300.0


class _Collector:
    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
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
            newest = (
                select(jobs.c.name, metrics.c.name, metrics.c.value)
                .join(jobs, jobs.c.id == metrics.c.job)
                .order_by(metrics.c.round)
            )
            values = {(job, name): value for job, name, value in connection.execute(newest)}
            yield _gauge("spry_job", "Newest value of each of a job's metrics.", ["job", "metric"],
                         [(*key, value) for key, value in values.items()])  # fmt: skip


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[Iterable[object]]) -> GaugeMetricFamily:
    found = GaugeMetricFamily(name, text, labels=labels)
    for row in rows:
        *values, number = row
        found.add_metric([str(value) for value in values], float(str(number)))
    return found


def exposition(store: Store) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(store))  # type: ignore[arg-type]
    return generate_latest(registry)
