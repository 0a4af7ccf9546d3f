"""Measure what open dashboards cost the server.

    python benchmarks/dashboards.py --bundle bundle/

A server with a fleet and a job under way; so many pages listen to `/v1/events` for a while and leave. Its memory
before, with them (at most) and after, and its processor time a second with and without them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fleet import TOKEN, Server, machine, shape_of
from load import Device, enrol, in_groups

from edge_client import keys

MOST_MB = 150.0


async def listen(port: int, job: str, over: asyncio.Event) -> int:
    """The bytes that one page was told."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /v1/events?job={job} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(head.encode())
    told = 0

    async def read() -> None:
        nonlocal told
        while chunk := await reader.read(1 << 16):
            told += len(chunk)

    reading = asyncio.create_task(read())
    await over.wait()
    reading.cancel()
    writer.close()
    return told


async def highest(server: Server, seconds: float) -> tuple[float, float]:
    """MB that the server took at most in this time, and its processor seconds a second."""
    spent, memory = server.process.cpu_seconds, [server.process.rss]
    for _ in range(int(seconds * 4)):
        await asyncio.sleep(0.25)
        memory.append(server.process.rss)
    return max(memory) / 1e6, (server.process.cpu_seconds - spent) / seconds


async def measure(server: Server, options: argparse.Namespace, job: str, token: str) -> dict[str, float]:
    devices = [Device(number) for number in range(options.devices)]
    await in_groups([enrol(device, server.port, token, keys.make()) for device in devices], 20)
    before, alone = await highest(server, options.seconds)
    over = asyncio.Event()
    pages = [asyncio.create_task(listen(server.port, job, over)) for _ in range(options.pages)]
    with_them, together = await highest(server, options.seconds)
    over.set()
    told = await asyncio.gather(*pages)
    await asyncio.sleep(3)
    after, _ = await highest(server, 1)
    for device in devices:
        device.connection.close()
    return {
        "MB before": before, "MB with them": with_them, "MB after": after, "MB more": with_them - before,
        "kB told to each": float(np.mean(told)) / 1e3, "told to the least": float(min(told)),
        "CPU s a second alone": alone, "CPU s a second with them": together,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--devices", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary))
        try:
            with server.administrator() as admin:
                bundle = admin.upload_bundle(options.bundle)
                settings: dict[str, Any] = {"training": shape_of(options.bundle)}
                job = admin.post("/v1/jobs", {"name": "shown", "bundle": bundle, "settings": settings})["id"]
                token = admin.post("/v1/tokens", {"uses": options.devices})["token"]
            figures = asyncio.run(measure(server, options, job, token))
        finally:
            server.stop()
    if options.json:
        print(json.dumps(figures))
    else:
        print(machine())
        for key, value in figures.items():
            print(f"  {key:<26}{value:.2f}")
    sys.exit(figures["MB more"] > MOST_MB or not figures["told to the least"])


if __name__ == "__main__":
    main()
