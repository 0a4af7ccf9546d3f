"""A real server and real clients in processes of their own, for the benchmarks of this folder."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from edge_client.bundle.folder import Bundle
from server import processes
from server.cli.connection import Access, Administrator

TOKEN = "a-token-for-benchmarks-on-this-machine"
NAMESPACE = "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"
"""Makes a command process 1 of the same host, as in a container; needs root."""
SPRY = [sys.executable, "-c", "from edge_client.commands.cli import main; main()"]


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.processor())  # fmt: skip
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GB, Python {platform.python_version()}"


class Process(processes.Process):
    """One that is watched."""

    @property
    def rss(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    @property
    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


class Server:
    """`uvicorn server.app:app`, which may be killed and started again on the same folder and port."""

    UVICORN: ClassVar[Sequence[str]] = (sys.executable, "-m", "uvicorn")
    """The program; tests put one in its place that has the libraries loaded."""

    def __init__(self, folder: Path, *before: str, host: str = "127.0.0.1", **settings: object) -> None:
        """`before` are words that the server's command follows, such as those of `NAMESPACE`."""
        self.folder = folder
        self.before = before
        self.host = host
        self.port = processes.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = {"data_dir": folder / "data", "admin_token": TOKEN, "enrolments_per_minute": 100_000} | settings
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        environment = {f"SPRY_{name.upper()}": str(value) for name, value in self.settings.items()}
        command = [
            *self.before,
            *self.UVICORN,
            "server.app:app",
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--no-access-log",
        ]
        self.process = Process(command, self.folder / "server.log", **environment)
        processes.wait_for_server(self.url, lambda: self.process.check("the server"), self.process.log)

    def kill(self) -> None:
        """Kill it, and wait until its port is closed: a process that `UVICORN` stands for may die a moment later."""
        self.process.kill()
        until = time.monotonic() + 60
        with suppress(OSError):
            while time.monotonic() < until:
                socket.create_connection((self.host, self.port), timeout=1).close()
                time.sleep(0.01)

    def stop(self) -> None:
        self.process.stop()

    def administrator(self) -> Administrator:
        return Administrator(Access(self.url, TOKEN))


class Client(Process):
    """`spry join` with a home of its own."""

    def __init__(
        self,
        server: Server,
        folder: Path,
        data: Path,
        token: str,
        *options: str,
        spry: Sequence[str] = SPRY,
        **environment: str,
    ) -> None:
        """`spry` is the command's beginning, for a device that is not this machine as it is."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        command = [*spry, "join", "--server", server.url, "--home", str(folder / "home"), "--data", str(data),
                   "--token", token, "--threads", "1", "--json", *options]  # fmt: skip
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        super().__init__(command, folder / "client.log", **single | environment)


def shape_of(bundle: Path) -> dict[str, int]:
    """The first batch and length that a bundle has programs for, as a job's training settings."""
    opened = Bundle.open(bundle, verify=False)
    batch, length = opened.manifest.shapes[0]
    return {"batch": batch, "length": length}


def read_rows(path: Path, limit: int = 0) -> list[dict[str, Any]]:
    with path.open() as file:
        rows = [json.loads(line) for line in file]
    return rows[:limit] if limit else rows


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shares(rows: Sequence[dict[str, Any]], clients: int) -> list[list[dict[str, Any]]]:
    """Row i to client i mod n."""
    return [list(rows[client::clients]) for client in range(clients)]
