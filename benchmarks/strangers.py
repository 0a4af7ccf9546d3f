"""Do strangers who hold connections shut a fleet out?

    python benchmarks/strangers.py
    python benchmarks/strangers.py --addresses 200       from so many addresses, none of them the devices'

So many connections write slowly, read slowly, ask many times on one connection and read nothing, close their side and
read nothing, or, with a person's token, open streams of events and read nothing; one that is ended is opened again at
once. Meanwhile health is asked for and devices check in, each on a new connection: how long answers take, how many
fail, and the server's memory beside that of the idle server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from fleet import TOKEN, Server, machine
from load import CHECK_IN, Connection, Device, enrol

from edge_client import keys
from edge_client.memory import resident

MOST_MS = 50.0
MOST_MEMORY = 1.3
LARGE = "/docs/assets/swagger-ui-bundle.js"
Stream = socket.socket


def _request(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()


async def _write_slowly(stream: Stream) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(stream, b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    while True:
        await loop.sock_sendall(stream, b"a")
        await asyncio.sleep(1)


async def _read_slowly(stream: Stream, most: int = 64) -> None:
    """A byte now and then is how one sees that the other end has gone."""
    while await asyncio.get_running_loop().sock_recv(stream, most):  # noqa: ASYNC110
        await asyncio.sleep(1)


async def _ask_and_read_slowly(stream: Stream) -> None:
    await asyncio.get_running_loop().sock_sendall(stream, _request(LARGE))
    await _read_slowly(stream)


async def _pipeline(stream: Stream) -> None:
    await asyncio.get_running_loop().sock_sendall(stream, _request(LARGE) * 5)
    await _read_slowly(stream, 1)


async def _pipeline_much(stream: Stream) -> None:
    await asyncio.get_running_loop().sock_sendall(stream, _request("/openapi.json") * 1000)
    await _read_slowly(stream, 1)


async def _half_close(stream: Stream) -> None:
    await asyncio.get_running_loop().sock_sendall(stream, _request(LARGE))
    stream.shutdown(socket.SHUT_WR)
    await _read_slowly(stream, 1)


async def _watch_events(stream: Stream) -> None:
    await asyncio.get_running_loop().sock_sendall(stream, _request("/v1/events", f"Authorization: Bearer {TOKEN}\r\n"))
    await _read_slowly(stream, 1)


ATTACKS = {
    "write slowly": _write_slowly,
    "read slowly": _ask_and_read_slowly,
    "pipeline": _pipeline,
    "pipeline much": _pipeline_much,
    "half-close": _half_close,
    "watch events": _watch_events,
}


async def _hold(port: int, address: str, attack: Callable[[Stream], Awaitable[None]]) -> None:
    """One connection, opened again whenever it was ended."""
    while True:
        with suppress(OSError), socket.socket() as stream:
            stream.setblocking(False)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.bind((address, 0))
            await asyncio.get_running_loop().sock_connect(stream, ("127.0.0.1", port))
            await attack(stream)
        await asyncio.sleep(0.2)


async def _attack(port: int, connections: int, addresses: int, chosen: list[str]) -> None:
    def source(number: int) -> str:
        return f"127.1.0.{1 + number % addresses}" if addresses else "127.0.0.1"

    held = [_hold(port, source(number), ATTACKS[chosen[number % len(chosen)]]) for number in range(connections)]
    await asyncio.gather(*held)


def attack(port: int, connections: int, addresses: int, chosen: list[str]) -> None:
    asyncio.run(_attack(port, connections, addresses, chosen))


async def _timed(call: Awaitable[tuple[int, bytes]], took: list[float]) -> None:
    """Measure the seconds until an answer comes; infinity where none does."""
    began = time.perf_counter()
    try:
        status, _ = await asyncio.wait_for(call, 5)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        status = 0
    took.append(1000 * (time.perf_counter() - began) if status == 200 else np.inf)


async def _ask(port: int, devices: list[Device], seconds: float) -> dict[str, list[float]]:
    """Health and check-ins, twenty of each a second, each on a connection of its own."""
    took: dict[str, list[float]] = {"health": [], "check-in": []}
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        connection = Connection(port)
        await _timed(connection.request("GET", "/healthz", "", b""), took["health"])
        connection.close()
        device = devices[number % len(devices)]
        await _timed(device.call("POST", "/v1/check-in", CHECK_IN), took["check-in"])
        device.connection.close()
        number += 1
        await asyncio.sleep(0.05)
    return took


async def _enrolled(server: Server, token: str, count: int) -> list[Device]:
    devices = [Device(number) for number in range(count)]
    for device in devices:
        await enrol(device, server.port, token, keys.make())
        device.connection.close()
    return devices


def measure(server: Server, options: argparse.Namespace) -> dict[str, float]:
    with server.administrator() as admin:
        token = admin.post("/v1/tokens", {"uses": options.devices})["token"]
    devices = asyncio.run(_enrolled(server, token, options.devices))
    alone = asyncio.run(_ask(server.port, devices, options.seconds / 4))
    idle = server.process.rss
    attacker = multiprocessing.get_context("spawn").Process(
        target=attack, args=(server.port, options.connections, options.addresses, options.attacks), daemon=True
    )
    attacker.start()
    try:
        time.sleep(options.before)
        spent, began = server.process.cpu_seconds, time.monotonic()
        took = asyncio.run(_ask(server.port, devices, options.seconds))
        busy = (server.process.cpu_seconds - spent) / (time.monotonic() - began)
    finally:
        attacker.terminate()
        attacker.join()
    highest = resident("VmHWM", server.process.process.pid)
    figures = {"CPU s a second": busy, "MB idle": idle / 1e6, "MB at most": highest / 1e6, "times": highest / idle}
    for name, times in took.items():
        figures |= {
            f"{name}: asked": len(times),
            f"{name}: not answered": sum(np.isinf(times)),
            f"{name}: median ms": float(np.median(times)),
            f"{name}: median ms, alone": float(np.median(alone[name])),
            f"{name}: 99th percentile ms": float(np.quantile(times, 0.99, method="lower")),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--addresses", type=int, default=0, help="0 for that of the devices")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS), help="all of them")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--patience", type=float, default=15.0, help="the server's SPRY_PATIENCE_SECONDS")
    parser.add_argument("--before", type=float, default=5.0, help="seconds before anybody asks")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary), patience_seconds=options.patience)
        try:
            figures = measure(server, options)
        finally:
            server.stop()
    if options.json:
        print(json.dumps({name: float(value) for name, value in figures.items()}))
    else:
        print(machine())
        for name, value in figures.items():
            print(f"  {name:<30}{value:.2f}")
    late = max(figures[f"{name}: median ms"] for name in ("health", "check-in")) > MOST_MS
    lost = figures["health: not answered"] + figures["check-in: not answered"]
    sys.exit(bool(late or lost or figures["times"] > MOST_MEMORY))


if __name__ == "__main__":
    main()
