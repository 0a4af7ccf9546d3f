"""Manage a project's running processes, which go on when the command that started them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from edge_client.store import files
from server.errors import ProjectError
from server.processes import reason

_GRACE = 20.0
"""Seconds that a process has to end by itself."""


class Started(msgspec.Struct, frozen=True):
    """A process, by its number and by when it began: numbers are given again."""

    pid: int
    began: str
    log: str


class Running:
    """The processes of a project, by their names, written down as they are started.

    Args:
        path: where they are written down.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = files.read_json(path, dict[str, Started]) or {}

    @property
    def names(self) -> list[str]:
        """List the names of running processes."""
        return [name for name, one in self._known.items() if _began(one.pid) == one.began]

    @property
    def ended(self) -> dict[str, str]:
        """List processes that ended when nobody asked them to, and why as far as they wrote it."""
        alive = self.names
        return {name: reason(Path(one.log)) for name, one in self._known.items() if name not in alive}

    def start(self, name: str, log: Path, *arguments: str, **environment: str) -> None:
        """Start a `spry` command in a session of its own, its output in a file, without this process's settings."""
        files.make_folder(log.parent)
        own = {key: value for key, value in os.environ.items() if not key.startswith("SPRY_")}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "edge_client", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=own | environment, start_new_session=True,
            )  # fmt: skip
        process.returncode = 0  # nobody waits for it: it goes on when this command has ended
        self._known[name] = Started(process.pid, _began(process.pid), str(log))
        self._keep()

    def check(self, name: str) -> None:
        """Refuse to go on where one has ended."""
        if name not in self.names:
            log = Path(self._known[name].log)
            raise ProjectError(f"{name} ended: {reason(log)} (see {log}); `spry up` goes on with what is there")

    def stop(self) -> list[str]:
        """End all, those first that were started last; gives the names of those that ran."""
        stopped = self.names
        for name in reversed(stopped):
            _send(self._known[name].pid, signal.SIGTERM)
        until = time.monotonic() + _GRACE
        while self.names and time.monotonic() < until:
            time.sleep(0.05)
        for name in self.names:
            _send(self._known[name].pid, signal.SIGKILL)
        self._known.clear()
        self._keep()
        return stopped

    def _keep(self) -> None:
        files.write(self._path, msgspec.json.encode(self._known))


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _began(pid: int) -> str:
    """Return when a process began, as the system reports it; empty when it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # of our own children what has ended must not look alive
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else f"{_boot()} {fields[19]}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
