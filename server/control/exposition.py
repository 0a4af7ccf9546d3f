"""Numbers for Prometheus, read from the database when they are asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from edge_client import __version__
from server.control import views
from server.jobs.job import ENDED
from server.storage import jobs
from server.storage.identities import devices, refusals
from server.storage.jobs import list_jobs
from server.storage.store import Store
from server.storage.work import assignments, rounds, traffic

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
            yield _gauge("spry_jobs", "Jobs by state.", ["state"], jobs.count_by_state(connection).items())
            yield _gauge("spry_rounds", "Rounds by state.", ["state"], rounds.count_by_state(connection).items())
            yield _gauge("spry_tasks", "Tasks by state.", ["state"], assignments.count_by_state(connection).items())
            refused = CounterMetricFamily("spry_refusals", "Reports that were not taken, by code.", labels=["code"])
            for code, count in refusals.count_by_code(connection).items():
                refused.add_metric([code], count)
            yield refused
            moved = CounterMetricFamily("spry_bytes", "Bytes that devices sent and fetched.", labels=["direction"])
            for direction, total in zip(("up", "down"), traffic.total(connection), strict=True):
                moved.add_metric([direction], float(total))
            yield moved
            known = devices.count_enrolled(connection)
            seen = devices.count_seen(connection, self._store.now() - _RECENT)
            yield _gauge("spry_devices", "Devices enrolled, and seen within five minutes.", ["which"],
                         [("enrolled", known), ("seen", seen)])  # fmt: skip

    def _jobs(self) -> Iterator[Metric]:
        shown = [views.job(self._store, job) for job in list_jobs(self._store)]
        metrics = [(job.name, *item) for job in shown for item in job.metrics.items()]
        yield _gauge("spry_job", "Newest value of each of a job's metrics; `seconds` is a round's duration.",
                     ["job", "metric"], metrics)  # fmt: skip
        done = [(job.name, "done", job.done) for job in shown]
        asked = [(job.name, "asked", job.settings.rounds) for job in shown]
        yield _gauge("spry_job_rounds", "Rounds that moved the weights, and how many are asked for.",
                     ["job", "which"], done + asked)  # fmt: skip
        newest = [(job.name, job.progress) for job in shown if job.state != ENDED and job.progress]
        numbers = [(name, round_.number) for name, round_ in newest]
        yield _gauge("spry_round_number", "The newest round of a job that has not ended.", ["job"], numbers)
        reports = [(name, which, getattr(round_, which))
                   for name, round_ in newest for which in ("training", "reported", "wanted")]  # fmt: skip
        yield _gauge("spry_round_reports", "Of that round: devices that train, reports that came and are wanted.",
                     ["job", "which"], reports)  # fmt: skip


def _gauge(name: str, text: str, labels: list[str], rows: Iterable[Iterable[object]]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for row in rows:
        *values, number = row
        gauge.add_metric([str(value) for value in values], float(str(number)))
    return gauge


def exposition(store: Store) -> bytes:
    """Expose all metrics, and the memory and files of the process that answers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(store))  # type: ignore[arg-type]
    ProcessCollector(registry=registry)
    return generate_latest(registry)
