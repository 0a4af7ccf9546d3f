"""Measure the load that one uvicorn worker on SQLite carries: a fleet's rounds, and check-ins at a steady rate.

    python benchmarks/load.py --bundle bundle/
    python benchmarks/load.py --bundle bundle/ --secrets      by devices without keys

1,000 devices speak real HTTP; their training is a canned change. First they finish rounds of 100, then all of them
check in at 300 a second whether answers come or not, and latency counts from the moment that a check-in was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fleet import Server, machine
from safetensors.numpy import save

from edge_client import keys
from edge_client.bundle.folder import Bundle
from edge_client.wire.proofs import DIGEST_HEADER, SCHEME, digest_of, enrolment, signed_text

P99_MS = 150.0


class Connection:
    """One kept-alive HTTP connection: a generator of load must cost less than what it measures."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def request(self, method: str, path: str, headers: str, body: bytes) -> tuple[int, bytes]:
        """Send a request in its turn; again on a new connection where the server closed the kept one meanwhile."""
        async with self._turn:
            return await self._answered(method, path, headers, body)

    async def _answered(self, method: str, path: str, headers: str, body: bytes) -> tuple[int, bytes]:
        reused = self._streams is not None
        try:
            return await self._request(method, path, headers, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            if not reused:
                raise
            return await self._request(method, path, headers, body)

    async def _request(self, method: str, path: str, headers: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(answer.split(" ", 2)[1])
        length = next((int(line[15:]) for line in answer.split("\r\n") if line.startswith("content-length:")), 0)
        content = await reader.readexactly(length)
        if "connection: close" in answer:
            self.close()
        return status, content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Device:
    number: int
    id: str = ""
    key: str = ""
    secret: str = ""
    newest: int = 0
    """The time of the last request, in milliseconds."""
    connection: Connection = field(default_factory=lambda: Connection(0))

    async def call(self, method: str, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
        headers = f"{self._proof(method, path, body)}Content-Type: {kind}\r\n"
        return await self.connection.request(method, path, headers, body)

    def _proof(self, method: str, path: str, body: bytes) -> str:
        if not self.key:
            return f"Authorization: Bearer {self.id}.{self.secret}\r\n" if self.id else ""
        self.newest = moment = max(int(1000 * time.time()), self.newest + 1)
        digest = digest_of(body)
        signature = keys.encoded(keys.sign(self.key, signed_text(method, moment, digest, "", path)))
        proof = f"{SCHEME} {self.id}.{moment}.{signature}"
        return f"Authorization: {proof}\r\n{DIGEST_HEADER}: {digest}\r\n"


CHECK_IN = json.dumps({"runtimes": ["onnx"], "examples": 100, "memory_bytes": 500_000_000}).encode()


async def enrol(device: Device, port: int, token: str, key: str) -> None:
    device.connection = Connection(port)
    body = json.dumps(asdict(enrolment(token, f"device-{device.number}", "", key))).encode()
    status, content = await device.call("POST", "/v1/devices", body)
    assert status == 201, content
    enrolled = json.loads(content)
    device.id, device.secret, device.key = enrolled["device"], enrolled["secret"], key


Canned = Callable[[list[int]], bytes]


async def take_part(device: Device, canned: Canned, over: asyncio.Event, seen: Counter[str]) -> None:
    """A client's loop without the training."""
    while not over.is_set():
        status, content = await device.call("POST", "/v1/check-in", CHECK_IN)
        seen[f"check-in {status}"] += 1
        answer = json.loads(content)
        wait = answer.get("wait", 1.0)
        if status == 200 and (task := answer["task"]):
            path = f"/v1/tasks/{task['id']}/update"
            status, content = await device.call("PUT", path, canned(task["units"]), "application/vnd.safetensors")
            seen[f"update {status}"] += 1
            wait = json.loads(content).get("wait", 1.0)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), max(wait, 0.05))


async def in_groups(work: Sequence[Awaitable[None]], size: int) -> None:
    for start in range(0, len(work), size):
        await asyncio.gather(*work[start : start + size])


async def steady(devices: list[Device], rate: float, seconds: float) -> list[float]:
    """Latencies in ms of check-ins that are due at a rate; what waits for a device's last one counts."""
    latencies: list[float] = []
    started = time.perf_counter()

    async def one(device: Device, due: float) -> None:
        status, _ = await device.call("POST", "/v1/check-in", CHECK_IN)
        assert status == 200, status
        latencies.append((time.perf_counter() - due) * 1e3)

    running: set[asyncio.Task[None]] = set()
    for number in range(int(rate * seconds)):
        due = started + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(devices[number % len(devices)], due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return latencies


def canned_update(bundle: Path) -> Canned:
    """The initial weights, moved a little; the same for all who hold the same units."""
    opened = Bundle.open(bundle, verify=False)
    manifest, weights = opened.manifest, opened.initial_adapter()
    rng = np.random.default_rng(0)
    known: dict[tuple[int, ...], bytes] = {}
    report = json.dumps({"examples": 100, "steps": 12, "loss": 1.0})

    def content(units: list[int]) -> bytes:
        key = tuple(units)
        if key not in known:
            names = [parameter.name for parameter in manifest.trained_with(units)]
            moved = {n: weights[n] + rng.normal(0, 1e-3, weights[n].shape).astype(np.float32) for n in names}
            known[key] = save(moved, {"report": report})
        return known[key]

    return content


async def measure(server: Server, options: argparse.Namespace, job: dict[str, Any], token: str) -> dict[str, Any]:
    devices = [Device(number) for number in range(options.devices)]
    made = ["" if options.secrets else keys.make() for _ in devices]
    enrolling = [enrol(device, server.port, token, key) for device, key in zip(devices, made, strict=True)]
    await in_groups(enrolling, 20)
    print(f"{options.devices} devices enrolled", flush=True)
    over, seen = asyncio.Event(), Counter[str]()
    canned = canned_update(options.bundle)
    started = time.monotonic()
    fleet = [asyncio.create_task(take_part(device, canned, over, seen)) for device in devices]
    with server.administrator() as admin:
        while True:
            await asyncio.sleep(0.5)
            view = await asyncio.to_thread(admin.get, f"/v1/jobs/{job['id']}")
            if view["state"] == "ended" or any(task.done() for task in fleet):
                break
        seconds = time.monotonic() - started
        over.set()
        await asyncio.gather(*fleet)
        rounds = await asyncio.to_thread(admin.get, f"/v1/jobs/{job['id']}/rounds")
        body = {
            "name": "steady",
            "bundle": job["bundle"],
            "settings": job["settings"] | {"rounds": 1000, "per_round": 50},
        }
        await asyncio.to_thread(admin.post, "/v1/jobs", body)  # some devices get tasks, as in a fleet at work
    before = server.process.cpu_seconds
    latencies = await steady(devices, options.rate, options.seconds)
    spent = server.process.cpu_seconds - before
    for device in devices:
        device.connection.close()
    return {
        "rounds": view["done"],
        "failed rounds": sum(row["state"] == "failed" for row in rounds),
        "seconds a round": seconds / max(view["done"], 1),
        "answers": dict(seen),
        "errors": sum(count for name, count in seen.items() if name[-3:] >= "500"),
        "check-ins": len(latencies),
        "CPU ms each": 1e3 * spent / len(latencies),
        "p50 ms": statistics.median(latencies),
        "p99 ms": statistics.quantiles(latencies, n=100)[98],
        "highest ms": max(latencies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--secrets", action="store_true", help="devices send secrets, and sign nothing")
    parser.add_argument("--p99", type=float, default=P99_MS, help="ms within which 99 of 100 check-ins are answered")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary), retry_seconds=3)
        try:
            with server.administrator() as admin:
                name = admin.upload_bundle(options.bundle)
                bundle = Bundle.open(options.bundle, verify=False)
                batch, length = bundle.manifest.shapes[0]
                settings = {
                    "training": {"batch": batch, "length": length},
                    "per_round": options.per_round,
                    "norm_bound": 1e9,  # canned changes do not follow the weights
                    "rounds": options.rounds,
                }
                job = admin.post("/v1/jobs", {"name": "load", "bundle": name, "settings": settings})
                token = admin.post("/v1/tokens", {"uses": options.devices})["token"]
            found = asyncio.run(measure(server, options, job, token))
            memory = server.process.rss / 1e6
        finally:
            server.stop()
    print(machine())
    for key, value in {**found, "server MB": memory}.items():
        print(f"  {key:<18}{value:.1f}" if isinstance(value, float) else f"  {key:<18}{value}")
    sys.exit(found["errors"] > 0 or found["p99 ms"] > options.p99 or found["rounds"] < options.rounds)


if __name__ == "__main__":
    main()
