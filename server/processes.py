"""Servers and devices on this machine: real processes, none of which outlives the one that started it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from edge_client.errors import SpryError
from server.errors import ServerConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

_PR_SET_PDEATHSIG = 1
_GRACE = 15.0
_START = 60.0
_ERROR = "error: "


@contextmanager
def held(lock: Path, refusal: SpryError) -> Generator[None]:
    """Keep a file locked for one process at a time; `refusal` is raised where another has it."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise refusal from None
        yield


class ProcessFailed(SpryError):
    """A process that was started here ended when it should not have."""


def main() -> None:
    """`spry` as a child: `python -m server.processes ...`. Asks the kernel to end it with its parent.

    Ctrl-C is what every command cleans up after; a shell's background job would have it ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    from edge_client.commands.cli import main as spry

    spry()


class Process:
    """A command in a process group of its own, its output in a file. No setting of this process's goes along."""

    def __init__(self, command: Sequence[str], log: Path, **environment: str) -> None:
        self.log = log
        self.peak = 0
        """Bytes of memory at most, as far as `look` has seen."""
        log.parent.mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if not name.startswith("SPRY_")}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=own | environment,
                start_new_session=True,
            )  # fmt: skip

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def look(self) -> None:
        """Take down how much memory it has had."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:  # it has ended, or this system tells nothing
            return
        known = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
        self.peak = max([self.peak, *known])

    def check(self, what: str) -> None:
        if not self.running:
            raise ProcessFailed(
                f"{what} ended with code {self.process.returncode}: {last_line(self.log)} (see {self.log})"
            )

    def stop(self) -> None:
        """Stop the process as a system stops a service."""
        if self.running:
            self.process.terminate()
        self.end()

    def end(self) -> None:
        """Wait for the process to end by itself, then kill what is left of its group."""
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process and all that it started, as a power cut would."""
        with suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Processes:
    """The processes that were started; leaving the block ends them, the last started first."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            if process.running:
                process.process.send_signal(signal.SIGINT)
        for process in reversed(self._started):
            process.end()

    def start(self, log: Path, *arguments: str, **environment: str) -> Process:
        """Start a `spry` command."""
        process = Process([sys.executable, "-m", "server.processes", *arguments], log, **environment)
        self._started.append(process)
        return process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Refuse an address that something listens on already."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ServerConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror}; end what listens there, or choose other --host "
            "and --port"
        ) from None


def last_line(log: Path) -> str:
    """Read a process's last line, without the word that commands begin errors with."""
    return _written_last(log).removeprefix(_ERROR) or "it said nothing"


def reason(log: Path) -> str:
    """Say why a process ended; one that was killed could write nothing of it."""
    last = _written_last(log)
    if last and not re.search("error|exception", last, re.IGNORECASE):
        return "killed, by the system where memory was short, or by somebody"
    return last.removeprefix(_ERROR) or "it said nothing"


def _written_last(log: Path) -> str:
    with suppress(OSError):
        return next(iter(log.read_text(errors="replace").strip().splitlines()[-1:]), "")
    return ""


def wait_for_server(url: str, check: Callable[[], None], log: Path, token: Path | None = None) -> None:
    """Wait until it answers; `check` raises where it has ended.

    Args:
        url: where it listens.
        check: looks whether it runs.
        log: has its output.
        token: the file of its administrator's token, written before it listens. Another server that took the port
            refuses it.
    """
    until, answers = time.monotonic() + _START, False
    with httpx.Client(verify=False) as client:  # noqa: S501 -- whether it is there at all
        while time.monotonic() < until:
            check()
            try:
                answers = client.get(f"{url}/healthz").is_success
                if answers and (token is None or _takes(client, url, token)):
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    if answers:
        raise ProcessFailed(f"another program answers at {url}, and the server did not in {_START:.0f} s (see {log})")
    raise ProcessFailed(f"the server gave no answer at {url} within {_START:.0f} s (see {log})")


def _takes(client: httpx.Client, url: str, token: Path) -> bool:
    """Tell whether a server takes the token in a file for its own."""
    if not token.is_file():
        return False
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    return client.get(f"{url}/v1/me", headers=headers).is_success


if __name__ == "__main__":
    main()
