"""The demo's fleet: a server, its devices, and one job."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edge_client import keys
from edge_client.bundle import signature
from edge_client.runtimes.runtime import available
from server.cli.connection import Access, Administrator
from server.demo import intents
from server.demo.folder import DemoFolder
from server.demo.plan import DemoPlan
from server.names import ADMIN_TOKEN
from server.processes import Process, Processes, free_port, wait_for_server
from server.screen import Screen

JOB = "demo"
_LOOK = 0.3
"""Seconds between two looks at the job."""
_PATIENCE = 15.0
"""The seconds to wait for devices' check-ins, which the server writes down every few seconds."""


@dataclass(frozen=True)
class DemoDevice:
    """A `spry join` with data of its own."""

    number: int
    name: str
    runtime: str
    process: Process


class Moved(NamedTuple):
    """Bytes."""

    up: float = 0
    down: float = 0


class DemoFleet:
    """The processes, and an administrator's access to the server."""

    def __init__(self, plan: DemoPlan, folder: DemoFolder, processes: Processes) -> None:
        self._plan = plan
        self._folder = folder
        self._processes = processes
        self.devices: list[DemoDevice] = []
        port = plan.port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = {"SPRY_RETRY_SECONDS": "1", "SPRY_TICK_SECONDS": "0.1", "SPRY_ENROLMENTS_PER_MINUTE": "10000"}
        arguments = "serve", "--port", str(port), "--data", str(folder.server)
        self._server = processes.start(folder.logs / "server.log", *arguments, **settings)
        wait_for_server(self.url, lambda: self._server.check("the server"), self._server.log)
        self.token = (folder.server / ADMIN_TOKEN).read_text().strip()
        self.admin = Administrator(Access(self.url, self.token))
        self._publisher = keys.make()  # of this run alone: TorchScript runs from signed bundles only

    @property
    def dashboard(self) -> str:
        return f"{self.url}/#token={self.token}"

    def start_job(self) -> None:
        held_out = self._folder.write_rows("held-out.jsonl", intents.common_test(self._plan.test))
        (self._folder.bundle / signature.SIGNATURES).unlink(missing_ok=True)
        signature.sign(self._folder.bundle, self._publisher)
        self.admin.post("/v1/jobs", {
            "name": JOB,
            "bundle": self.admin.upload_bundle(self._folder.bundle),
            "settings": settings_of(self._plan) | {"held_out": self.admin.upload_held_out(held_out)},
        })  # fmt: skip

    def start_devices(self) -> None:
        token = self.admin.post("/v1/tokens", {"uses": self._plan.clients, "label": "the demo"})["token"]
        for number, runtime in enumerate(runtimes_for(self._plan.clients, available())):
            name = intents.household(number).name
            data = self._folder.write_rows(f"{name}/data.jsonl", intents.slice_of(number, self._plan.heard))
            process = self._processes.start(
                self._folder.logs / f"{name}.log", "join", "--server", self.url, "--home", str(self.home(name)),
                "--data", str(data), "--name", name, "--runtime", runtime, "--threads", "1", "--json",
                "--holdout", str(self._plan.held_back), "--trust", keys.public_of(self._publisher),
                SPRY_TOKEN=token, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
            )  # fmt: skip
            self.devices.append(DemoDevice(number, name, runtime, process))

    def bytes_a_round(self) -> dict[str, Moved]:
        """Return the bytes up and down, by the device's name; without the bundle, which is sent once."""
        names = {device["id"]: device["name"] for device in self.admin.get("/v1/devices")}
        total = {name: Moved() for name in names.values()}
        for row in self.admin.get(f"/v1/jobs/{JOB}/traffic"):
            if row["round"]:
                known = total[names[row["device"]]]
                total[names[row["device"]]] = Moved(known.up + row["up"], known.down + row["down"])
        rounds = self._plan.rounds
        return {name: Moved(moved.up / rounds, moved.down / rounds) for name, moved in total.items()}

    def step_seconds(self) -> dict[str, float]:
        """Read the devices' step times, once all of them have checked in after a round."""
        until = time.monotonic() + _PATIENCE
        while True:
            said = {device["name"]: device["profile"] or {} for device in self.admin.get("/v1/devices")}
            seconds = {name: profile["step_seconds"] for name, profile in said.items() if profile.get("step_seconds")}
            if len(seconds) == len(self.devices) or time.monotonic() > until:
                return seconds
            time.sleep(_LOOK)

    def home(self, name: str) -> Path:
        return self._folder.devices / name / "home"

    def follow(self, screen: Screen) -> dict[str, Any]:
        """Follow the job until it has ended, and print each round as it is done."""
        done = newest = 0
        while True:
            self._look()
            job = self.admin.get(f"/v1/jobs/{JOB}")
            if job["done"] > done:
                done = job["done"]
                for row in self._done_after(newest):
                    newest = row["number"]
                    screen.round_done(row, self._plan.rounds)
            screen.round_open(job["progress"], self._plan.rounds)
            if job["state"] == "ended":
                return job
            time.sleep(_LOOK)

    def _done_after(self, number: int) -> list[dict[str, Any]]:
        """Rounds in their order; those that failed have numbers too."""
        rows: list[dict[str, Any]] = self.admin.get(f"/v1/jobs/{JOB}/rounds")
        return [row for row in reversed(rows) if row["state"] == "done" and row["number"] > number]

    def serve(self) -> None:
        """Serve until interrupted."""
        while True:
            self._look()
            time.sleep(_LOOK)

    def _look(self) -> None:
        self._server.check("the server")
        for device in self.devices:
            device.process.look()
            device.process.check(device.name)


@contextmanager
def started(plan: DemoPlan, folder: DemoFolder) -> Generator[DemoFleet]:
    with Processes() as processes:
        fleet = DemoFleet(plan, folder, processes)
        with fleet.admin:
            yield fleet


def runtimes_for(clients: int, known: list[str]) -> list[str]:
    """Return one device for each runtime that is installed, as far as there are devices; the others take the first."""
    others = known[1:clients]
    return [known[0]] * (clients - len(others)) + others


def settings_of(plan: DemoPlan) -> dict[str, Any]:
    return {
        **plan.recipe.settings,
        "training": asdict(plan.training),
        "per_round": plan.clients,
        "over_selection": 1.0,
        "rounds": plan.rounds,
        "deadline": 300.0,
        "device_evaluation": 1 if plan.training.mode == "epoch" else 0,
        "seed": 1,
    }
