"""Who does the work of a simulation: this process, several, or a cluster.

A crew calls a method of `Worker` once for each tuple of arguments and gives the results in the same order. Which
worker takes which call changes nothing.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from edge_client.errors import RuntimeMissing
from server.errors import SimulationError
from server.simulation.plan import Plan
from server.simulation.work import Worker

Engine = Literal["local", "ray"]


class Crew(Protocol):
    """Workers that are called by a method's name."""

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of all calls, in their order."""
        ...


class Alone:
    """This process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self._worker, method)(*arguments) for arguments in calls]


class Processes:
    """Processes of this machine, each with a model of its own."""

    def __init__(self, plan: Plan, count: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // count)
        self._pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), initializer=_open_worker, initargs=(plan, threads)
        )

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            return list(self._pool.map(_call_worker, [method] * len(calls), calls))
        except BrokenProcessPool:
            raise SimulationError(
                "a worker process died, for lack of memory perhaps: use fewer --workers, and run the same command "
                "again to go on from the last round"
            ) from None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


_worker: Worker | None = None
"""A worker process's own."""


def _open_worker(plan: Plan, threads: int) -> None:
    global _worker  # noqa: PLW0603 -- a process pool offers no other place
    os.environ["OMP_NUM_THREADS"] = str(threads)
    _worker = Worker(plan)


def _call_worker(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_worker, method)(*arguments)


class Cluster:
    """Actors of Ray, on this machine or many; each holds a model."""

    def __init__(self, plan: Plan, count: int) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise RuntimeMissing("spry simulate --engine ray", "ray", f"{error.name} is not installed") from error
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        remote: Any = ray.remote(num_cpus=1, num_gpus=int(plan.device.startswith("cuda")))(Worker)
        self._ray = ray
        self._workers: list[Any] = [remote.remote(plan) for _ in range(count)]

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        from ray.util import ActorPool

        def submit(worker: Any, arguments: tuple[Any, ...]) -> Any:
            return getattr(worker, method).remote(*arguments)

        return list(ActorPool(self._workers).map(submit, list(calls)))

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)


@contextmanager
def open_crew(plan: Plan, worker: Worker, workers: int, engine: Engine) -> Generator[Crew, None, None]:
    """The crew that was asked for; `worker` is this process's own."""
    if engine == "local" and workers == 1:
        yield Alone(worker)
        return
    crew = Cluster(plan, workers) if engine == "ray" else Processes(plan, workers)
    try:
        yield crew
    finally:
        crew.close()
