"""A crew of processes on this machine, each with a model of its own.

They end with this process, however it ends: a terminal's Ctrl-C is for it alone, and they watch that it lives.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from edge_client.errors import SpryError
from edge_client.memory import return_freed_blocks
from server.errors import SimulationError
from server.simulation.compute.work import Worker
from server.simulation.plan import Plan
from server.simulation.quiet import quiet_libraries


class WorkerProcesses:
    """Processes of this machine, each with a model of its own."""

    def __init__(self, plan: Plan, count: int) -> None:
        context = multiprocessing.get_context("forkserver")
        # Once for all of them, and in memory that they share.
        context.set_forkserver_preload(["server.simulation.compute.libraries", "server.simulation.compute.processes"])
        self._workers: dict[Connection, Any] = {}
        threads = max(1, len(os.sched_getaffinity(0)) // count)
        with _uninterrupted():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(plan, threads, theirs), daemon=True)
                process.start()
                theirs.close()
                self._workers[ours] = process
        try:
            for worker in self._workers:
                _receive(worker)  # that it is ready: a round's seconds are the round's alone
        except BaseException:
            self.close()
            raise

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        waiting = list(enumerate(calls))[::-1]
        idle, busy = list(self._workers), dict[Connection, int]()
        results: dict[int, Any] = {}
        while len(results) < len(calls):
            while idle and waiting:
                worker, (number, arguments) = idle.pop(), waiting.pop()
                busy[worker] = number
                _send(worker, (method, arguments))
            for worker in wait(list(busy)):
                assert isinstance(worker, Connection)
                results[busy.pop(worker)] = _receive(worker)
                idle.append(worker)
        return [results[number] for number in range(len(calls))]

    def close(self) -> None:
        """Kill the workers at once, also in the middle of a call: nobody else uses their results."""
        for process in self._workers.values():
            process.kill()
        for connection, process in self._workers.items():
            process.join()
            connection.close()


def _send(worker: Connection, call: tuple[str, tuple[Any, ...]]) -> None:
    try:
        worker.send(call)
    except OSError:
        raise _died() from None


def _receive(worker: Connection) -> Any:
    try:
        result, error = worker.recv()
    except (EOFError, OSError):
        raise _died() from None
    if error is not None:
        raise error
    return result


def _died() -> SimulationError:
    return SimulationError(
        "a worker process died, for lack of memory perhaps: use fewer --workers, and run the same command again to go "
        "on from the last round"
    )


@contextmanager
def _uninterrupted() -> Generator[None, None, None]:
    """Processes that begin here never see a Ctrl-C; this one sees it afterwards."""
    resource_tracker.ensure_running()  # it sets the same mask as it begins, and some versions clear it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the worker's process -----------------------------------------------------------------------------------------


def _work(plan: Plan, threads: int, calls: Connection) -> None:
    """Answer calls until killed; a defect ends it too, with its traceback."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    quiet_libraries()
    return_freed_blocks()
    import torch

    torch.set_num_threads(min(threads, torch.get_num_threads()))
    worker = Worker(plan)
    with suppress(EOFError, ConnectionError):  # nobody is there any more
        calls.send((None, None))
        while True:
            method, arguments = calls.recv()
            calls.send(_answer(worker, method, arguments))


def _answer(worker: Worker, method: str, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    try:
        return getattr(worker, method)(*arguments), None
    except (SpryError, OSError) as error:
        return None, error


def _end_with_parent() -> None:
    """Also where it was killed, and a call is under way."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this process was started by `WorkerProcesses`
    parent.join()
    os._exit(1)
