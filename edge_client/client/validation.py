"""Check this device's rows against jobs: before it takes a slot, and again when the rows have changed."""

from __future__ import annotations

from edge_client.data.examples import Examples
from edge_client.data.local import OwnData
from edge_client.events import Event, Tell
from edge_client.tasks.registry import TASK_TYPES
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import OpenJob, Task
from edge_client.wire.server import Server

_LOOKED_AT = 200
"""Examples whose length is counted, at most."""
_MOST_CUT = 0.2
"""The share of the examples that may be cut without a word."""
_LONGEST_REASON = 300
_MOST_JOBS = 20
"""The most jobs that a check-in names."""


class DataValidation:
    """Which jobs the rows do not fit, and which they fit only in part."""

    def __init__(self, data: OwnData, job: str | None, tell: Tell) -> None:
        self._data = data
        self._job = job
        self._tell = tell
        self._stamp: object = None
        self._open: list[OpenJob] | None = None
        self._unfit: dict[str, str] = {}
        self._long: tuple[str, int, str] | None = None

    @property
    def fits_none(self) -> bool:
        """True if there are jobs, and the rows fit none of them."""
        return bool(self._open) and all(job.job in self._unfit for job in self._open or ())

    @property
    def finds_none(self) -> bool:
        """True if a job was named, and no running one has its name."""
        return self._job is not None and self._open == []

    def look(self, server: Server) -> dict[str, str]:
        """Return the reason for each job that the rows do not fit, by its id."""
        if self._open is None or self._data.stamp() != self._stamp:
            self._stamp = self._data.stamp()
            self._open = [job for job in server.open_jobs() if self._job in (None, job.job, job.job_name)]
            self._unfit = {job.job: why for job in self._open[:_MOST_JOBS] if (why := self._misfit(job))}
        return self._unfit

    def _misfit(self, job: OpenJob) -> str:
        """Say why rows do not fit a job, as far as it can be found without the bundle."""
        kind = TASK_TYPES.get(job.task)
        if kind is None:
            return ""
        check = kind.first_check(job.labels)
        why = _in_one_line(self._data.misfit(kind.fields, check, converses=kind.converses))
        if why:
            known = f"; its labels are {', '.join(job.labels)[:300]}" if kind.has_classes else ""
            self._tell(Event("warning", f"these rows do not fit {job.job_name}: {why}{known}"))
        return why

    def tell_of_long(self, bench: TrainingSession, task: Task, examples: Examples) -> None:
        """Once for the same rows and room: how many of some of them are cut, where it is more than a few."""
        room = task.training.length
        if (looked := (task.bundle, room, examples.fingerprint)) == self._long:
            return
        self._long = looked
        some = [examples[index].texts for index in range(0, len(examples), -(-len(examples) // _LOOKED_AT))]
        long = sum(length > room for length in bench.encoder(1, room).lengths(some))
        if long > _MOST_CUT * len(some):
            what = f"{long} of {len(some)} examples looked at have more than the {room} tokens that the job reads"
            self._tell(Event("warning", f"{what}; the rest of each is left out"))


def _in_one_line(text: str) -> str:
    """Shorten a text to one line that a server takes: a row may hold anything."""
    return "".join(mark if mark.isprintable() else "?" for mark in text)[:_LONGEST_REASON]
