"""Distribute the work of a simulation over this process, several, or a cluster.

A crew calls a method of `Worker` once for each tuple of arguments and gives the results in the same order. Which
worker takes which call changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from server.simulation.compute.cluster import Cluster
from server.simulation.compute.processes import WorkerProcesses
from server.simulation.compute.work import Worker
from server.simulation.plan import Plan

Engine = Literal["local", "ray"]


class Crew(Protocol):
    """Workers that are called by a method's name."""

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of all calls, in their order."""
        ...


class Alone:
    """A crew of this process alone."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self._worker, method)(*arguments) for arguments in calls]


@contextmanager
def open_crew(plan: Plan, worker: Worker, workers: int, engine: Engine) -> Generator[Crew, None, None]:
    """Open the crew that was asked for; `worker` is this process's own."""
    if engine == "local" and workers == 1:
        yield Alone(worker)
        return
    crew = Cluster(plan, workers) if engine == "ray" else WorkerProcesses(plan, workers)
    try:
        yield crew
    finally:
        crew.close()
