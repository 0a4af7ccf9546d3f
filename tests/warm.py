"""A Python that begins with the heavy libraries loaded, for tests of commands whose start is not their subject.

To import torch, transformers and ExecuTorch takes five seconds of a core, longer than most commands that tests run.
`python()` is a program that takes Python's own arguments. It hands them, with its folder, variables and open files,
to a process that has the libraries and forks for each; signals go on to the fork, and how it ends comes back. What was
loaded otherwise than it would be here (`-O`, `OMP_NUM_THREADS`) gets a Python of its own.

Not for tests of memory, of processes by their number, of hash seeds or of what a command imports. Commands that a
fork starts by `sys.executable` are forks too, except those of `ALONE`.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

LIBRARIES = (
    "export.pipeline",
    "export.rows",
    "executorch.exir",
    "onnxscript",
    "server.app",
    "server.simulation.command",
)
"""Not ONNX Runtime, whose thread would be missing in a fork."""
CONFIGURED = ("server.app",)
"""Modules that read a command's own variables as they are loaded: each fork loads them once more."""
READ_EARLY = ("PYTHON", "OMP_", "OPENBLAS_", "MKL_", "TORCH", "HF_", "TRANSFORMERS_")
"""Variables that Python and libraries read as they begin."""
READ_LATER = "PYTHONPATH", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR"
"""A fork may have these otherwise than the process it comes from; PEFT sets the last one where it is imported."""
PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2


SHARED = "SPRY_TESTS_PYTHON"
"""A variable with the program of another process: those that tests run in have one together."""

ALONE = {"join", "serve", "uvicorn", "edge_client.runtimes.measure", "edge_client.commands.bench.worker"}
ALONE |= {"export.check.eager", "export.check.stock"}
"""Words of commands that load little, or are watched or measured."""


@cache
def python() -> str:
    """The program's path; what it asks is there for as long as this process, or the one that set `SHARED`."""
    if sys.platform != "linux":
        return sys.executable
    if shared := os.environ.get(SHARED):
        return shared
    folder = tempfile.TemporaryDirectory(prefix="spry-")  # a socket's path must be short
    program = Path(folder.name) / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {program}.socket "$@"\n')
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{program}.socket")
        listener.listen(64)
        command = [sys.executable, "-W", "ignore", __file__, str(listener.fileno()), str(program)]
        with Path(f"{program}.log").open("wb") as log:  # what libraries say as they are loaded
            forking = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, pass_fds=[listener.fileno()])
    atexit.register(folder.cleanup)
    atexit.register(forking.communicate)
    return str(program)


def read_early(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(READ_EARLY) and name not in READ_LATER
    }


# --- the program -----------------------------------------------------------------------------------------------------


def ask(address: str, words: Sequence[str]) -> None:
    """End as the fork ends."""
    if ALONE.intersection(words):
        os.execv(sys.executable, [sys.executable, *words])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        os.umask(mask := os.umask(0))
        ignored = [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
        asked = {
            "words": words,
            "folder": str(Path.cwd()),
            "mask": mask,
            "ignored": ignored,
            "environment": dict(os.environ),
        }
        data = json.dumps(asked).encode()
        socket.send_fds(connection, [len(data).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(data)
        for number in set(PASSED_ON) - set(ignored):
            signal.signal(number, lambda number, _frame: connection.send(bytes([number])))
        told = connection.recv(16)
    status = json.loads(told or b"1")
    if status is None:  # not in a fork
        os.execv(sys.executable, [sys.executable, *words])
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


# --- the process that forks ------------------------------------------------------------------------------------------


def serve(listener: socket.socket, python: str) -> list[str]:
    """Serve commands: return a command's words in the fork that runs it; the other processes do not return."""
    early = read_early(os.environ)  # what libraries set as they are loaded is not part of it
    for name in LIBRARIES:
        import_module(name)
    for name in CONFIGURED:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave nothing behind
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:  # who started this has ended
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return keep(connection, early, python)
        connection.close()


def keep(connection: socket.socket, early: dict[str, str], python: str) -> list[str]:
    """Fork once more, and tell the program what becomes of the fork; here alone it can be waited for."""
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    asked = json.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    if asked["words"][:1] not in (["-c"], ["-m"]) and not asked["words"][0].endswith(".py"):
        told: int | None = None
    elif read_early(asked["environment"]) != early:
        told = None
    else:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        command = os.fork()
        if command == 0:
            connection.close()
            take_on(asked, files, python)
            return asked["words"]
        told = ended(command, connection)
    connection.send(json.dumps(told).encode())
    os._exit(0)


def ended(command: int, connection: socket.socket) -> int:
    """Its status, once it has one; until then it gets the program's signals, and dies if the program does."""
    process = os.pidfd_open(command)
    while True:
        ready, _, _ = select.select([process, connection], [], [])
        if process in ready:
            return os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        told = connection.recv(1)
        os.kill(command, told[0] if told else signal.SIGKILL)
        if not told:
            os._exit(0)


def take_on(asked: dict[str, Any], files: Sequence[int], python: str) -> None:
    """The place of the program that asked."""
    os.setsid()  # a terminal's signals reach the program, which passes them on
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.umask(asked["mask"])
    os.chdir(asked["folder"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[:] = [place for place in sys.path if place not in own]
    sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.executable, sys.orig_argv = python, [python, *asked["words"]]
    warnings.resetwarnings()
    for action in os.environ.get("PYTHONWARNINGS", "default").split(","):
        warnings.simplefilter(action)


def run(words: Sequence[str]) -> None:
    """As Python does, except that a command which has ended does not tidy its memory up."""
    try:
        execute(*words)
        _status.append(0)
    except SystemExit as end:
        _status.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


_status: list[int] = []


def leave() -> None:
    """To be called last of all that is called at exit."""
    if _status:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(_status[0] & 0xFF)


def execute(kind: str, *rest: str) -> None:
    if kind == "-m":
        sys.argv = list(rest)
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        sys.path.pop(0)
        atexit.register(leave)  # before the libraries register theirs
        run(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))
    else:
        ask(sys.argv[1], sys.argv[2:])
