"""Measure what servers carry of a fleet that grows: check-ins of devices that wait, and rounds beside them.

    python benchmarks/large_fleet.py --bundle bundle/ --devices 100000
    python benchmarks/large_fleet.py --bundle bundle/ --devices 1000 --devices 10000 --devices 100000 --json scale.json
    python benchmarks/large_fleet.py --bundle bundle/ --devices 100000 --servers 3

Each device has a key of its own, signs what it sends, opens a connection for each check-in as one does that waits for
minutes, and comes back when it was told to, by a device's own rules. Its training is a wait and a canned change. The
fleet stands in the database beforehand, each device somewhere in the wait that a server tells so many. Latency counts
from the moment that a check-in was due, and the devices' own CPU, on the same cores, is told apart.

Several servers share PostgreSQL and a bucket (see `replicas.py`), which take their part of the same cores; each request
goes to the next of them. Processor time and memory are of all servers, without the database and the bucket.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from fleet import Server, machine, shape_of
from load import canned_update
from replicas import opened, shared_home

from edge_client import keys
from edge_client.wire.proofs import DIGEST_HEADER, SCHEME, digest_of, signed_text
from server.storage.identities import devices
from server.storage.store import Store

CHECK_IN = json.dumps({"runtimes": ["onnx"], "examples": 100, "memory_bytes": 500_000_000}).encode()
_DIGEST = digest_of(CHECK_IN)
SAFETENSORS = "application/vnd.safetensors"
P99_MS = 500.0
_SPREAD = 0.9, 1.2
"""The spread of a device's wait around what it is told (`edge_client.client.waits`)."""
_RETRY_SPREAD = 1.0, 1.25
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 300.0
"""The waits between a device's repeated requests (`edge_client.wire.server`)."""
_SECONDS = 30.0


@dataclass
class Seen:
    """The answers that a fleet had from its server, and how long they took."""

    latencies: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The due time of each check-in, and the ms until it was answered."""
    answers: Counter[str] = field(default_factory=Counter[str])
    receipts: Counter[int] = field(default_factory=Counter[int])
    """The receipts that devices were given for their updates, by round."""
    newest: dict[int, float] = field(default_factory=dict[int, float])
    """The time of the last receipt, by round."""
    sent: list[float] = field(default_factory=list[float])
    """The ms that updates took."""


class Fleet:
    """Devices that are events in a heap rather than tasks, for there are many."""

    def __init__(
        self,
        ports: Sequence[int],
        secrets: list[str],
        names: list[str],
        canned: Callable[[list[int]], bytes],
        training: tuple[float, float],
    ) -> None:
        self._ports = itertools.cycle(ports)
        self._training = training
        self._secrets = secrets
        self._names = names
        self._canned = canned
        self._newest = [0] * len(names)
        self._failures = Counter[int]()
        self._due: list[tuple[float, int, dict[str, Any] | None]] = []
        self._working = set[asyncio.Task[None]]()
        self._wake = asyncio.Event()
        self.seen = Seen()

    def at(self, moment: float, device: int, task: dict[str, Any] | None = None) -> None:
        """Let a device check in then, or send what comes of a task."""
        heapq.heappush(self._due, (moment, device, task))

    async def run(self, until: float) -> None:
        """Do what is due, and end when the last of it is answered."""
        while (now := time.monotonic()) < until:
            while self._due and self._due[0][0] <= now:
                moment, device, task = heapq.heappop(self._due)
                work = self._check_in(device, moment) if task is None else self._send(device, task, moment)
                working = asyncio.create_task(work)
                self._working.add(working)
                working.add_done_callback(self._working.discard)
            await asyncio.sleep(min(0.005, until - now))
        if self._working:
            await asyncio.wait(self._working)
        for working in self._working:
            working.result()

    async def _check_in(self, device: int, due: float) -> None:
        status, headers, content = await self._call(device, "POST", "/v1/check-in", CHECK_IN, "application/json")
        now = time.monotonic()
        self.seen.latencies.append((due, 1e3 * (now - due)))
        self.seen.answers[f"check-in {status}"] += 1
        if status != 200:
            self.at(now + self._pause(device, headers), device)
            return
        self._failures.pop(device, None)
        answer = json.loads(content)
        if task := answer.get("task"):
            self.at(now + random.uniform(*self._training), device, task)
        else:
            self.at(now + max(answer["wait"], 0.2) * random.uniform(*_SPREAD), device)

    async def _send(self, device: int, task: dict[str, Any], due: float) -> None:
        path = f"/v1/tasks/{task['id']}/update"
        status, headers, content = await self._call(device, "PUT", path, self._canned(task["units"]), SAFETENSORS)
        now = time.monotonic()
        self.seen.answers[f"update {status}"] += 1
        if status == 200:
            self._failures.pop(device, None)
            self.seen.receipts[task["round"]] += 1
            self.seen.newest[task["round"]] = time.time()
            self.seen.sent.append(1e3 * (now - due))
            self.at(now + json.loads(content)["wait"] * random.uniform(*_SPREAD), device)
        elif status in (0, 429, 503):
            self.at(now + self._pause(device, headers), device, task)
        else:  # the round is over
            self.at(now + 1.0, device)

    def _pause(self, device: int, headers: str) -> float:
        asked = next((line[12:] for line in headers.split("\r\n") if line.startswith("retry-after:")), None)
        if asked is not None:
            return float(asked) * random.uniform(*_RETRY_SPREAD)
        grown = min(_FIRST_PAUSE * 2.0 ** min(self._failures[device], 20), _LONGEST_PAUSE)
        self._failures[device] += 1
        return random.uniform(grown / 4, grown)

    async def _call(self, device: int, method: str, path: str, body: bytes, kind: str) -> tuple[int, str, bytes]:
        """The status, headers and body of an answer; status 0 where there is none."""
        try:
            return await asyncio.wait_for(self._asked(device, method, path, body, kind), _SECONDS)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            return 0, "", b""

    async def _asked(self, device: int, method: str, path: str, body: bytes, kind: str) -> tuple[int, str, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", next(self._ports))
        try:
            digest = _DIGEST if body is CHECK_IN else digest_of(body)
            self._newest[device] = moment = max(int(1000 * time.time()), self._newest[device] + 1)
            signature = keys.encoded(keys.sign(self._secrets[device], signed_text(method, moment, digest, "", path)))
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n"
                f"Authorization: {SCHEME} {self._names[device]}.{moment}.{signature}\r\n{DIGEST_HEADER}: {digest}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
            return int(head.split(" ", 2)[1]), head, await reader.readexactly(length)
        finally:
            writer.close()


def settle(store: Store, token: str, made: list[str], wait: float) -> list[str]:
    """Write a fleet into the servers' database, each device heard of somewhere in the last wait; gives their names."""
    names = [f"d-{number:012x}" for number in range(len(made))]
    now = time.time()
    with store.database.write() as connection:
        for name, secret in zip(names, made, strict=True):
            devices.add(connection, name, "", name, token, now - wait * random.random(), keys.public_of(secret))
    return names


@dataclass(frozen=True)
class Found:
    """The figures of one fleet."""

    devices: int
    servers: int
    seconds: float
    check_ins_per_second: float
    p50_ms: float
    p99_ms: float
    highest_ms: float
    server_cpu: float
    """Processor seconds a second."""
    devices_cpu: float
    server_mb: float
    rounds: int
    failed_rounds: int
    late_ms: float
    """The longest from a round's last receipt to its weights' being published."""
    round_seconds: float
    updates: int
    update_p99_ms: float
    lost: int
    """Receipts of which the server knows nothing."""
    answers: dict[str, int]


async def measure(servers: list[Server], fleet: Fleet, job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Let the fleet run, and look at the servers beside it."""
    own, began = psutil.Process(), time.monotonic()
    memory: list[int] = []

    async def watch() -> tuple[float, float]:
        await asyncio.sleep(options.warm_up)
        spent, mine = cpu_seconds(servers), sum(own.cpu_times()[:2])
        while time.monotonic() < began + options.warm_up + options.seconds:
            memory.append(sum(server.process.rss for server in servers))
            await asyncio.sleep(1.0)
        return cpu_seconds(servers) - spent, sum(own.cpu_times()[:2]) - mine

    until = began + options.warm_up + options.seconds
    (server_cpu, own_cpu), _ = await asyncio.gather(watch(), fleet.run(until))
    counted = [ms for due, ms in fleet.seen.latencies if due >= began + options.warm_up]
    with servers[0].administrator() as admin:
        rounds = await asyncio.to_thread(admin.get, f"/v1/jobs/{job}/rounds", limit=1000)
    closed = [row for row in rounds if row["state"] == "done"]
    quantiles = statistics.quantiles(counted, n=100)
    accepted = {row["number"]: row["tasks"].get("accepted", 0) for row in rounds}
    return {
        "seconds": options.seconds,
        "check_ins_per_second": len(counted) / options.seconds,
        "p50_ms": quantiles[49],
        "p99_ms": quantiles[98],
        "highest_ms": max(counted),
        "server_cpu": server_cpu / options.seconds,
        "devices_cpu": own_cpu / options.seconds,
        "server_mb": max(memory) / 1e6,
        "rounds": len(closed),
        "failed_rounds": sum(row["state"] == "failed" for row in rounds),
        "late_ms": 1e3 * max((row["closed"] - fleet.seen.newest[row["number"]] for row in closed), default=math.nan),
        "round_seconds": statistics.median(row["closed"] - row["started"] for row in closed) if closed else math.nan,
        "updates": sum(fleet.seen.receipts.values()),
        "update_p99_ms": statistics.quantiles(fleet.seen.sent, n=100)[98] if len(fleet.seen.sent) > 1 else math.nan,
        "lost": sum(max(0, count - accepted.get(number, 0)) for number, count in fleet.seen.receipts.items()),
        "answers": dict(sorted(fleet.seen.answers.items())),
    }


def cpu_seconds(servers: list[Server]) -> float:
    return sum(server.process.cpu_seconds for server in servers)


def run(number: int, options: argparse.Namespace, folder: Path) -> Found:
    """Measure a fleet of so many devices, on servers of its own."""
    with ExitStack() as stack:
        shared = stack.enter_context(shared_home(folder)) if options.servers > 1 else {}
        servers: list[Server] = []
        for place in range(options.servers):
            servers.append(Server(folder / f"server-{place}", check_ins_per_second=options.rate, **shared))
            stack.callback(servers[-1].stop)
        with servers[0].administrator() as admin:
            name = admin.upload_bundle(options.bundle)
            settings = {
                "training": shape_of(options.bundle),
                "per_round": options.per_round,
                "norm_bound": 1e9,  # canned changes do not follow the weights
                "rounds": 100_000,
            }
            job = admin.post("/v1/jobs", {"name": "load", "bundle": name, "settings": settings})
            token = admin.post("/v1/tokens", {"uses": 1_000_000})["id"]
        for server in servers:
            server.stop()
        wait = max(30.0, number / options.rate)
        made = [keys.make() for _ in range(number)]
        with opened(servers[0], servers[0].folder / "data") as store:
            names = settle(store, token, made, wait)
        for server in servers:
            server.start()
        ports = [server.port for server in servers]
        fleet = Fleet(ports, made, names, canned_update(options.bundle), options.training)
        now = time.monotonic()
        rush = now + options.warm_up + options.seconds / 2
        for device in range(number):
            at_once = device < options.rush
            fleet.at(rush + random.random() if at_once else now + wait * random.random(), device)
        return Found(number, options.servers, **asyncio.run(measure(servers, fleet, job["id"], options)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--devices", type=int, action="append", required=True)
    parser.add_argument("--servers", type=int, default=1, help="more than one share PostgreSQL and a bucket")
    parser.add_argument("--rate", type=float, default=200.0, help="SPRY_CHECK_INS_PER_SECOND")
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--training", type=float, nargs=2, default=(2.0, 8.0), help="shortest and longest seconds")
    parser.add_argument("--rush", type=int, default=0, help="devices that come within a second, half way through")
    parser.add_argument("--p99", type=float, default=P99_MS, help="ms within which 99 of 100 check-ins are answered")
    parser.add_argument("--json", type=Path, help="also write what was found here")
    options = parser.parse_args()
    found: list[Found] = []
    print(machine())
    for number in options.devices:
        with tempfile.TemporaryDirectory() as temporary:
            found.append(run(number, options, Path(temporary)))
        for key, value in asdict(found[-1]).items():
            print(f"  {key:<22}{value:.2f}" if isinstance(value, float) else f"  {key:<22}{value}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "found": [asdict(one) for one in found]}, indent=1))
    sys.exit(any(one.lost or one.failed_rounds or not one.rounds or one.p99_ms > options.p99 for one in found))


if __name__ == "__main__":
    main()
