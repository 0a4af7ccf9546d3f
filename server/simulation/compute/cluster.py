"""A crew of Ray: actors on this machine or on many, each with a model of its own."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from edge_client.errors import RuntimeMissing, SpryError
from server.errors import SimulationError
from server.simulation.compute.work import Worker
from server.simulation.plan import Plan
from server.simulation.quiet import quiet_libraries

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray warns of otherwise
}

_PATIENCE = 10.0
"""Seconds for a cluster's answer."""


class QuietWorker(Worker):
    """A worker whose libraries keep quiet."""

    def __init__(self, plan: Plan) -> None:
        quiet_libraries()
        super().__init__(plan)


class Cluster:
    """Actors of Ray; of the cluster at RAY_ADDRESS, or else of one on this machine for as long as it is needed."""

    def __init__(self, plan: Plan, count: int) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ModuleNotFoundError as error:
            raise RuntimeMissing("spry simulate --engine ray", "ray", f"{error.name} is not installed") from error
        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        self._workers: list[Any] = []
        if self._ours:
            self._connect(count)
        try:
            need = {"CPU": 1} if plan.device == "cpu" else {"CPU": 1, "GPU": 1}
            self._check(need, count)
            actor: Any = ray.remote(num_cpus=1, num_gpus=need.get("GPU", 0))(QuietWorker)
            self._workers += [actor.remote(plan) for _ in range(count)]
            with self._told():
                ray.get([worker.__ray_ready__.remote() for worker in self._workers])
        except BaseException:
            self.close()
            raise

    def _connect(self, count: int) -> None:
        # Given an address, Ray connects and takes no number of CPUs; without one it starts what is needed here.
        address = os.environ.get("RAY_ADDRESS")
        local: dict[str, Any] = {} if address else {"num_cpus": count, "include_dashboard": False}
        try:
            _knock(address or "")
            self._begin(local)
        except (OSError, ValueError, RuntimeError) as error:
            where = f"the Ray cluster at {address}" if address else "Ray on this machine"
            raise SimulationError(
                f"{where} does not answer ({_first_line(error)}); see `ray status`, or set or unset RAY_ADDRESS"
            ) from None

    def _begin(self, options: dict[str, Any], *, again: bool = True) -> None:
        """Start Ray or connect to it; once more where its own processes took longer than the 30 s that it gives them.

        Then it raises no class of its own.
        """
        try:
            with _own_signals():
                self._ray.init(log_to_driver=False, logging_level="CRITICAL", **options)
        except Exception as error:
            if type(error) is not Exception:
                raise
            self._ray.shutdown()
            if not again:
                raise RuntimeError(str(error)) from None
            self._begin(options, again=False)

    def _check(self, need: dict[str, int], count: int) -> None:
        """Actors without a place would wait forever."""
        there = self._ray.cluster_resources()
        places = min(int(there.get(name, 0) // share) for name, share in need.items())
        if places < count:
            raise SimulationError(
                f"the Ray cluster has places for {places} workers, each with {' and '.join(need)}, not for {count}: "
                "use fewer --workers, or add nodes"
            )

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        from ray.util import ActorPool

        def submit(worker: Any, arguments: tuple[Any, ...]) -> Any:
            return getattr(worker, method).remote(*arguments)

        with self._told():
            return list(ActorPool(self._workers).map(submit, list(calls)))

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        """Ray's errors as ours."""
        errors = self._ray.exceptions
        try:
            yield
        except errors.RayTaskError as error:
            if isinstance(error.cause, SpryError | OSError):
                raise error.cause from None
            raise
        except errors.RayError as error:
            raise SimulationError(
                f"a worker of the Ray cluster died ({_first_line(error)}); run the same command again to go on from "
                "the last round"
            ) from None

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        if self._ours:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """Connect to `host:port`, where Ray itself would try for minutes; other forms of address are left to it."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "//" not in host:
        socket.create_connection((host, int(port)), _PATIENCE).close()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")


@contextmanager
def _own_signals() -> Generator[None, None, None]:
    """Ray handles SIGTERM in a way of its own from its start on; here its end is that of a Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
