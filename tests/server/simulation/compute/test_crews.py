"""Processes compute what one process computes; they end with the command, however it ends, and nothing is lost."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from edge_client.errors import DataError
from server.errors import SimulationError
from server.simulation.compute.processes import WorkerProcesses
from tests.server.simulation.runs import arguments, bits, done, first_round, lines, small

PATIENCE = 300
"""Seconds until something hangs; a busy machine is slow."""


@pytest.fixture
def data(writing):
    return writing(rows=120)


@pytest.fixture
def started(tmp_path):
    """Starts the command, and ends it at last."""
    running = []

    def start(plan, *more):
        words = [*arguments(plan), "--out", str(tmp_path / "run"), *more]
        command = [sys.executable, "-c", "from edge_client.commands.cli import main; main()", *words]
        environment = os.environ | {"PYTHONWARNINGS": "ignore"}
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, start_new_session=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def wait_for(condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def in_a_round(folder, pid):
    """Wait until some moment of a round after the first."""
    rounds, process = folder / "rounds.jsonl", psutil.Process(pid)
    wait_for(lambda: process.status() == psutil.STATUS_ZOMBIE or (rounds.exists() and len(lines(folder)) > 1))
    assert process.status() != psutil.STATUS_ZOMBIE, "the run has ended"
    time.sleep(random.uniform(0, 0.2))


def workers_of(pid):
    """Its descendants that compute; they have the command line of the child that they are forked from."""
    found = psutil.Process(pid).children(recursive=True)
    return [one for one in found if one.ppid() != pid and "forkserver" in str(one.cmdline())]


def test_two_processes_leave_the_same_bits_as_one(model_folder, data, tmp_path):
    plan = small(model_folder, data, rounds=2)
    assert bits(done(plan, tmp_path / "two", workers=2)) == bits(done(plan, tmp_path / "one"))
    assert not workers_of(os.getpid())


def test_what_a_worker_refuses_is_told_and_what_kills_it_too(model_folder, data):
    plan = small(model_folder, data)
    crew = WorkerProcesses(plan, 1)
    try:
        rows = (data / "train.jsonl").read_text().splitlines()
        (data / "train.jsonl").write_text("\n".join(reversed(rows)))
        with pytest.raises(DataError, match="changed while it was in use"):
            first_round(plan, crew)
        (worker,) = workers_of(os.getpid())
        worker.kill()
        with pytest.raises(SimulationError, match="a worker process died, for lack of memory perhaps"):
            crew.call("score", [({}, 0, 1)])
    finally:
        crew.close()


def test_a_stopped_command_leaves_no_process_and_goes_on(model_folder, data, tmp_path, started):
    plan = small(model_folder, data, rounds=1000)
    process = started(plan, "--workers", "2")
    in_a_round(tmp_path / "run", process.pid)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    told = process.communicate(timeout=PATIENCE)[1].decode().splitlines()
    assert process.returncode == 130
    wait_for(lambda: not any(worker.is_running() for worker in workers))
    assert told[-1].startswith("stopped after round")
    assert all(line.startswith(("round ", "loading ")) for line in told[:-1])
    more = small(model_folder, data, rounds=len(lines(tmp_path / "run")) + 1)
    assert bits(done(more, tmp_path / "run")) == bits(done(more, tmp_path / "whole"))


def test_a_killed_run_leaves_no_process(model_folder, data, tmp_path):
    """`test_resume.py` goes on with what one has left."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["export.rows", "tests.server.simulation.runs"])
    plan = small(model_folder, data, rounds=1000)
    running = context.Process(target=done, args=(plan, tmp_path / "run"), kwargs={"workers": 2})
    running.start()
    in_a_round(tmp_path / "run", running.pid)
    workers = workers_of(running.pid)
    assert len(workers) == 2
    running.kill()
    wait_for(lambda: not any(worker.is_running() for worker in workers))
    running.join()
