"""Do memory, descriptors and tables stay flat while rounds go on for hours?

    python benchmarks/soak.py --bundle bundle/ --minutes 60

Devices whose training is a canned change finish round after round, one of them sends nonsense, and details of closed
rounds are kept for a short while (`--keep` seconds). Every few seconds a line: rounds done, the server's memory and
open descriptors, and the rows of each table. At the end the last quarter is compared with the second: rounds and their
metrics are kept for good, all else must be flat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil
from fleet import Server, machine, shape_of
from load import Device, canned_update, enrol, take_part

from edge_client import keys

FLAT = "tasks", "refusals", "traffic", "versions", "scalars"
MEMORY_GROWTH = 1.1
ROWS_GROWTH = 1.5
DESCRIPTORS_GROWTH = 20

Figures = dict[str, float]


def look(server: Server, started: float) -> Figures:
    process = psutil.Process(server.process.process.pid)
    figures: Figures = {
        "seconds": time.monotonic() - started,
        "MB": server.process.rss / 1e6,
        "descriptors": process.num_fds(),
    }
    with closing(sqlite3.connect(server.folder / "data" / "spry.sqlite")) as database:
        for table in ("rounds", *FLAT):
            figures[table] = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return figures


async def spoil(device: Device, over: asyncio.Event) -> None:
    """A device that takes what it is given and sends nonsense."""
    await take_part(device, lambda _units: b"nonsense", over, Counter[str]())


async def run(server: Server, options: argparse.Namespace, token: str) -> list[Figures]:
    devices = [Device(number) for number in range(options.devices + 1)]
    for device in devices:
        await enrol(device, server.port, token, keys.make())
    over, canned, seen = asyncio.Event(), canned_update(options.bundle), Counter[str]()
    started, figures = time.monotonic(), list[Figures]()
    fleet = [asyncio.create_task(take_part(device, canned, over, seen)) for device in devices[1:]]
    fleet.append(asyncio.create_task(spoil(devices[0], over)))
    while time.monotonic() < started + 60 * options.minutes:
        await asyncio.sleep(options.every)
        figures.append(await asyncio.to_thread(look, server, started))
        if not options.json:
            print("  ".join(f"{name} {value:.0f}" for name, value in figures[-1].items()), flush=True)
        if ended := [task for task in fleet if task.done()]:
            await ended[0]
            raise SystemExit("a device ended by itself")
    over.set()
    await asyncio.gather(*fleet)
    for device in devices:
        device.connection.close()
    return figures


def quarters(figures: list[Figures], name: str) -> tuple[list[float], list[float]]:
    """The second one and the last: the first one is the server's warming up."""
    quarter = len(figures) // 4
    values = [row[name] for row in figures]
    return values[quarter : 2 * quarter], values[-quarter:]


def verdict(figures: list[Figures]) -> dict[str, bool]:
    """Which are flat.

    Of a table its highest count: rows come one by one and are tidied away many at once, so that a middle one says where
    in that cycle the looks fell. What is kept is of the last seconds: a machine that has become less busy keeps more.
    """
    before, after = map(statistics.median, quarters(figures, "descriptors"))
    flat = {"descriptors": after <= before + DESCRIPTORS_GROWTH}
    before, after = map(statistics.median, quarters(figures, "MB"))
    flat["MB"] = after <= MEMORY_GROWTH * before
    paces = [part[-1] - part[0] for part in quarters(figures, "rounds")]
    faster = max(1.0, paces[1] / max(paces[0], 1.0))
    for table in FLAT:
        before, after = map(max, quarters(figures, table))
        flat[table] = after <= ROWS_GROWTH * faster * before + 20
    return flat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two lines")
    parser.add_argument("--keep", type=float, default=60.0, help="seconds that details of closed rounds are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary), retry_seconds=0.3, tick_seconds=0.1, keep_days=options.keep / 86_400)
        try:
            with server.administrator() as admin:
                bundle = admin.upload_bundle(options.bundle)
                settings = {
                    "training": shape_of(options.bundle), "per_round": max(1, options.devices // 2), "minimum": 1,
                    "rounds": 1_000_000, "deadline": 20, "keep": 2, "norm_bound": 1e9,
                }  # fmt: skip
                admin.post("/v1/jobs", {"name": "soak", "bundle": bundle, "settings": settings})
                token = admin.post("/v1/tokens", {"uses": options.devices + 1})["token"]
            figures = asyncio.run(run(server, options, token))
        finally:
            server.stop()
    flat = verdict(figures)
    print(json.dumps({"flat": flat, "figures": figures}) if options.json else f"{machine()}\nflat: {flat}")
    sys.exit(not all(flat.values()))


if __name__ == "__main__":
    main()
