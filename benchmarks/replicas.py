"""Is anything lost when servers that share PostgreSQL and a bucket are killed in turn, behind one address?

    python benchmarks/replicas.py --bundle bundle/ --devices 100 --rounds 100 --every 20

Starts PostgreSQL (`pgserver`), what speaks S3 (`moto`), three servers with a data folder each, and a proxy that passes
each connection on to the next of them, or to the one after it where that does not answer. While devices finish rounds
one server after the other is killed with SIGKILL and started again. Afterwards:

- every receipt that a device got is an accepted update, every accepted update was averaged, and no round failed;
- all three servers give the same adapter, and its weights are bit for bit those of one server, never killed, on SQLite
  and its own folder, whose devices were given the same seeds.

Devices sign what they send, fetch the weights of each round, and repeat what was not answered, each request over a
connection of its own. Their training is noise of the task's seed on the weights that they fetched: what any of them
sends decides all later rounds, and which of them sends it decides nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fleet import TOKEN, Process, Server, machine, shape_of
from load import CHECK_IN, Connection, Device, enrol, in_groups
from pydantic import SecretStr
from safetensors.numpy import load, save
from sqlalchemy import func, select

from edge_client import keys
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from server import processes
from server.cli.connection import NoAnswer
from server.settings import Settings
from server.storage.jobs import find_job
from server.storage.schema.tables import rounds, tasks
from server.storage.store import Store

JOB = "replicas"
BUCKET = "fleet"
_PAUSES = 0.1, 0.5
"""Seconds between two tries of a request."""
_PATIENCE = 30.0
"""Seconds that an answer may take."""
_REPEATED = 429, 503
_STANDS = 180.0
"""Seconds without the end of a round after which it stands for ever."""
_SAFETENSORS = "application/vnd.safetensors"


class Proxy:
    """Passes each connection on to a server, in turn, and to the next where one does not answer."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = servers
        self._turn = 0
        self.passed = Counter[int]()
        """Connections by the server that took them."""
        self.failed_over = 0

    async def start(self) -> int:
        """Listen, and give the port."""
        self._listening = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._listening.sockets[0].getsockname()[1])

    def stop(self) -> None:
        self._listening.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await self._next()
            if server is not None:
                await asyncio.gather(_copy(reader, server[1]), _copy(server[0], writer))
        finally:
            writer.close()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the server whose turn it is."""
        for _ in self._servers:
            number = self._turn = (self._turn + 1) % len(self._servers)
            try:
                streams = await asyncio.open_connection("127.0.0.1", self._servers[number].port)
            except OSError:
                self.failed_over += 1
                continue
            self.passed[number] += 1
            return streams
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side ends or breaks."""
    with suppress(OSError):
        while content := await reader.read(1 << 16):
            writer.write(content)
            await writer.drain()
    writer.close()


@dataclass
class Told:
    """The answers that devices received."""

    receipts: set[str] = field(default_factory=set[str])
    """Tasks whose update they have a receipt for."""
    answers: Counter[str] = field(default_factory=Counter[str])
    unanswered: int = 0


class Fleet:
    """Devices that take part until they are told that it is over."""

    def __init__(self, manifest: Manifest, devices: list[Device], training: tuple[float, float]) -> None:
        """`training` are the seconds that a task takes, from and to."""
        self._manifest = manifest
        self._devices = devices
        self._training = training
        self.over = asyncio.Event()
        self.told = Told()

    async def run(self) -> None:
        await asyncio.gather(*map(self._take_part, self._devices))

    async def _take_part(self, device: Device) -> None:
        while not self.over.is_set():
            _, content = await self._answered(device, "POST", "/v1/check-in", CHECK_IN)
            answer = json.loads(content)
            wait = answer.get("wait", 1.0)
            if task := answer.get("task"):
                wait = await self._work(device, task)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.over.wait(), max(wait, 0.05) * random.uniform(0.9, 1.2))

    async def _work(self, device: Device, task: dict[str, Any]) -> float:
        """Do a task; gives the seconds to wait afterwards."""
        status, content = await self._answered(device, "GET", f"/v1/jobs/{task['job']}/weights", b"")
        if status != 200:
            return 1.0
        update = trained(self._manifest, task, load(content))
        await asyncio.sleep(random.uniform(*self._training))
        status, content = await self._answered(device, "PUT", f"/v1/tasks/{task['id']}/update", update, _SAFETENSORS)
        if status != 200:
            return 1.0
        self.told.receipts.add(task["id"])
        return float(json.loads(content)["wait"])

    async def _answered(
        self, device: Device, method: str, path: str, body: bytes, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """The answer to a request, repeated until there is one, by a connection of its own each time."""
        what = path.rsplit("/", 1)[1]
        while True:
            try:
                status, content = await asyncio.wait_for(device.call(method, path, body, kind), _PATIENCE)
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                self.told.unanswered += 1
            else:
                self.told.answers[f"{what} {status}"] += 1
                if status not in _REPEATED:
                    return status, content
            finally:
                device.connection.close()
            await asyncio.sleep(random.uniform(*_PAUSES))


def trained(manifest: Manifest, task: dict[str, Any], weights: dict[str, np.ndarray]) -> bytes:
    """An update that follows from the weights, the units and the seed of its task alone."""
    rng = np.random.default_rng(task["seed"])
    names = [parameter.name for parameter in manifest.trained_with(task["units"])]
    moved = {n: weights[n] + rng.normal(0, 1e-3, weights[n].shape).astype(np.float32) for n in names}
    report = {"examples": int(rng.integers(10, 200)), "steps": 12, "loss": float(rng.uniform(0.5, 1.0))}
    return save(moved, {"report": json.dumps(report)})


@dataclass
class Kills:
    """The kills of servers."""

    servers: Counter[int] = field(default_factory=Counter[int])
    closing: int = 0
    """The kills while the server closed a round."""


async def kill_in_turn(servers: list[Server], store: Store, options: argparse.Namespace, over: asyncio.Event) -> Kills:
    """Kill one after the other, while it closes a round where that can be, and start it again, until it is over."""
    kills = Kills()
    for number in itertools.cycle(range(len(servers))):
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), options.every * random.uniform(0.7, 1.3))
        if over.is_set():
            return kills
        pid = servers[number].process.process.pid
        await asyncio.to_thread(until_it_closes, store, pid, options.every / 2)
        servers[number].kill()
        kills.servers[number] += 1
        kills.closing += closes(store, pid)
        await asyncio.to_thread(servers[number].start)
    raise AssertionError


def until_it_closes(store: Store, pid: int, seconds: float) -> None:
    """Wait for the moment that a process claims a round, but no longer than so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not closes(store, pid):
        time.sleep(0.002)


def closes(store: Store, pid: int) -> bool:
    """Whether a process had claimed a round."""
    with store.database.read() as connection:
        owners = connection.scalars(select(rounds.c.owner).where(rounds.c.state == "closing"))
        return any(owner.split(":")[1] == str(pid) for owner in owners)


# --- runs ------------------------------------------------------------------------------------------------------------


async def run(entry: Server, servers: list[Server], store: Store | None, options: argparse.Namespace) -> dict[str, Any]:
    """Let a fleet finish a job; with a store the servers, behind a proxy, are killed meanwhile."""
    with entry.administrator() as admin:
        bundle = await asyncio.to_thread(admin.upload_bundle, options.bundle)
        settings = {"training": shape_of(options.bundle), "per_round": options.per_round, "minimum": options.per_round,
                    "over_selection": 1, "rounds": options.rounds, "deadline": 3600, "seed": 1}  # fmt: skip
        admin.post("/v1/jobs", {"name": JOB, "bundle": bundle, "settings": settings})
        token = admin.post("/v1/tokens", {"uses": options.devices})["token"]
    proxy = Proxy(servers)
    port = await proxy.start()
    devices = [Device(number) for number in range(options.devices)]
    await in_groups([enrol(device, port, token, keys.make()) for device in devices], 10)
    for device in devices:
        device.connection.close()
        device.connection = Connection(port)
    opened = Bundle.open(options.bundle, verify=False)
    fleet = Fleet(opened.manifest, devices, (0.0, 0.0) if store is None else tuple(options.training))
    started = time.monotonic()
    running = asyncio.create_task(fleet.run())
    killing = None if store is None else asyncio.create_task(kill_in_turn(servers, store, options, fleet.over))
    try:
        await until_it_ends(servers, running)
    finally:
        fleet.over.set()
    kills = await killing if killing else Kills()
    await running
    proxy.stop()
    return {"seconds": time.monotonic() - started, "kills": kills, "told": fleet.told, "proxy": proxy}


async def until_it_ends(servers: list[Server], running: asyncio.Task[None]) -> None:
    """Wait for the job's end, or the fleet's, which is an error's, or for a round that stands."""
    newest, moved = 0, time.monotonic()
    while True:
        job = await asyncio.to_thread(seen, servers)
        if job.get("state") == "ended" or running.done():
            return
        if job.get("done", 0) > newest:
            newest, moved = job["done"], time.monotonic()
        if time.monotonic() > moved + _STANDS:
            said = "; ".join(processes.last_line(server.process.log) for server in servers)
            raise TimeoutError(f"no round was closed in {_STANDS:.0f} s: {said}")
        await asyncio.wait([running], timeout=0.3)


def seen(servers: list[Server]) -> dict[str, Any]:
    """The job, as the first server tells that answers; empty where none does."""
    for server in servers:
        with suppress(NoAnswer), server.administrator() as admin:
            return admin.get(f"/v1/jobs/{JOB}")
    return {}


@contextmanager
def shared_home(folder: Path) -> Generator[dict[str, str]]:
    """Start PostgreSQL and what speaks S3; gives the settings of servers that share both."""
    from pgserver.postgres_server import get_server  # of the extra `test`, like moto

    database = get_server(folder / "postgres", cleanup_mode="delete")
    port = processes.free_port()
    moto = Process([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], folder / "s3.log")
    try:
        url = f"http://127.0.0.1:{port}"
        names = {"ENDPOINT_URL": url, "ALLOW_HTTP": "true", "REGION": "us-east-1", "ACCESS_KEY_ID": "a",
                 "SECRET_ACCESS_KEY": "b"}  # fmt: skip
        os.environ.update({f"AWS_{name}": value for name, value in names.items()})
        until = time.monotonic() + 60
        while True:
            moto.check("moto")
            with suppress(httpx.TransportError):
                httpx.put(f"{url}/{BUCKET}").raise_for_status()
                break
            if time.monotonic() > until:
                raise TimeoutError(f"moto gave no answer at {url} within a minute")
            time.sleep(0.1)
        yield {"database_url": database.get_uri(), "blob_store": f"s3://{BUCKET}/spry"}
    finally:
        moto.kill()
        database.cleanup()


def checked(store: Store, told: Told) -> dict[str, Any]:
    """Compare what devices were told with what the servers hold."""
    job = find_job(store, JOB)
    with store.database.read() as connection:
        of_job = tasks.c.job == job.id
        accepted = set(connection.scalars(select(tasks.c.id).where(of_job, tasks.c.state == "accepted")))
        given = connection.scalar(select(func.count()).select_from(tasks).where(of_job)) or 0
        closed = connection.execute(select(rounds).where(rounds.c.job == job.id)).all()
    done = [row for row in closed if row.state == "done"]
    took = [row.closed - row.started for row in done]
    return {
        "tasks given": given,
        "receipts": len(told.receipts),
        "receipts lost": len(told.receipts - accepted),
        "accepted without receipt": len(accepted - told.receipts),
        "accepted": len(accepted),
        "averaged": sum(row.result["reports"] for row in done),
        "rounds done": len(done),
        "rounds failed": len(closed) - len(done),
        "version": job.version,
        "median round, s": statistics.median(took) if took else 0.0,
        "longest round, s": max(took, default=0.0),
    }


def weights_of(store: Store) -> dict[str, np.ndarray]:
    job = find_job(store, JOB)
    return store.models.load(job, job.version).weights


@contextmanager
def opened(server: Server, folder: Path) -> Generator[Store]:
    """Look into what a server shares with others, by a data folder of one's own."""
    url, home = (str(server.settings.get(name, "")) for name in ("database_url", "blob_store"))
    store = Store(Settings(data_dir=folder, admin_token=SecretStr(TOKEN), database_url=url, blob_store=home))
    try:
        yield store
    finally:
        store.close()


@dataclass
class Outcome:
    ran: dict[str, Any]
    found: dict[str, Any]
    weights: dict[str, np.ndarray]
    adapters: int
    """Different ones, of as many servers as there are."""


def replicated(options: argparse.Namespace, folder: Path) -> Outcome:
    """The run of several servers, which are killed."""
    with ExitStack() as stack:
        shared = stack.enter_context(shared_home(folder))
        servers: list[Server] = []
        for number in range(options.servers):
            server = Server(folder / f"server-{number}", retry_seconds=0.5, tick_seconds=0.1, **shared)
            stack.callback(server.stop)
            servers.append(server)
        store = stack.enter_context(opened(servers[0], folder / "observer"))
        ran = asyncio.run(run(servers[0], servers, store, options))
        adapters: set[bytes] = set()
        for server in servers:
            with server.administrator() as admin:
                adapters.add(admin.bytes(f"/v1/jobs/{JOB}/adapter"))
        return Outcome(ran, checked(store, ran["told"]), weights_of(store), len(adapters))


def single(options: argparse.Namespace, folder: Path) -> Outcome:
    """The run of one server, which nobody disturbs."""
    server = Server(folder / "single", retry_seconds=0.2, tick_seconds=0.05)
    try:
        ran = asyncio.run(run(server, [server], None, options))
    finally:
        server.stop()
    with opened(server, folder / "single" / "data") as store:
        return Outcome(ran, checked(store, ran["told"]), weights_of(store), 1)


def told(many: Outcome, one: Outcome, options: argparse.Namespace) -> bool:
    """Print the table; gives whether all is as it should be."""
    kills, proxy, devices = many.ran["kills"], many.ran["proxy"], many.ran["told"]
    killed = sum(kills.servers.values())
    same = many.weights.keys() == one.weights.keys() and all(
        np.array_equal(many.weights[name], value) for name, value in one.weights.items()
    )
    print(machine())
    print(f"{killed} kills of {options.servers} servers in {many.ran['seconds']:.0f} s, {kills.closing} in a closing")
    print(f"  connections passed on     {[proxy.passed[number] for number in range(options.servers)]}")
    print(f"  of them failed over       {proxy.failed_over}")
    print(f"  requests without answer   {devices.unanswered}")
    print(f"  answers                   {dict(sorted(devices.answers.items()))}")
    print(f"  {'':<26}{'replicas':>10}{'one server':>12}")
    for name, value in many.found.items():
        cells = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in (value, one.found[name]))
        print("  {:<26}{:>10}{:>12}".format(name, *cells))
    print(f"  the servers give the same adapter: {many.adapters == 1}")
    print(f"  its weights are those of one server's run, bit for bit: {same}")
    wanted = options.rounds * options.per_round
    return (
        same
        and many.adapters == 1
        and killed >= options.kills
        and all(
            found["receipts"] == found["accepted"] == found["averaged"] == wanted
            and not found["receipts lost"]
            and not found["rounds failed"]
            and found["rounds done"] == found["version"] == options.rounds
            for found in (many.found, one.found)
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--per-round", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--training", type=float, nargs=2, default=(0.5, 3.0), metavar="S", help="seconds that tasks take"
    )
    parser.add_argument("--every", type=float, default=20.0, help="seconds, about, from one server's start to a kill")
    parser.add_argument("--kills", type=int, default=3, help="fewer is a failure: ask for more rounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        many = replicated(options, Path(temporary))
        one = single(options, Path(temporary))
    sys.exit(not told(many, one, options))


if __name__ == "__main__":
    main()
