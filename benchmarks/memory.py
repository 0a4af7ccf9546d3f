"""Measure how much memory a device needs. The size of a real `spry join` before, in and after training, and over time.

    python benchmarks/memory.py --bundle bundle/ --data DATA/snips

Resident memory in MB of 10^6 bytes: idle before the first task; the highest there is while training; idle after the
job, at the server's default retry time; and the highest in every 50 rounds of a long job, which is flat when the last
50 are within 5 % of the first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fleet import Client, Server, machine, read_rows, shape_of, write_rows

from edge_client.bundle.folder import Bundle
from edge_client.data.local import OwnData
from edge_client.memory import resident
from edge_client.tasks.registry import task_named
from server.cli.connection import Administrator

IDLE_MB, TRAINING_MB, DRIFT = 70.0, 170.0, 0.05
EVERY = 50
DEFAULT_RETRY = 30.0
STARTED, SETTLED = 10.0, 70.0
"""Seconds in which a client enrols; in which it checks in at least once and waits."""


class Watched:
    """A client whose memory is looked at."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.highest = 0.0

    def _megabytes(self, field: str) -> float:
        self.client.check("the client")
        return resident(field, self.client.process.pid) / 1e6

    def now(self) -> float:
        """Return its size, and keep the highest, which the system knows and the client resets at times."""
        self.highest = max(self.highest, self._megabytes("VmHWM"))
        return self._megabytes("VmRSS")

    def taken(self) -> float:
        """The highest since the last call."""
        self.now()
        found, self.highest = self.highest, 0.0
        return found

    def waits(self, seconds: float) -> float:
        """Return its size after some time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.now()
            time.sleep(0.1)
        return self.now()


@contextmanager
def watching(options: argparse.Namespace, folder: Path, retry: float) -> Generator[tuple[Administrator, Watched]]:
    """A server and one client."""
    server = Server(folder, retry_seconds=retry, tick_seconds=0.05)
    data = write_rows(folder / "client.jsonl", read_rows(options.data / "train.jsonl", options.examples))
    try:
        with server.administrator() as admin:
            token = admin.post("/v1/tokens", {"uses": 1})["token"]
            client = Client(server, folder / "client", data, token, *["--low-memory"] * options.low_memory)
            try:
                yield admin, Watched(client)
            finally:
                client.stop()
    finally:
        server.stop()


def start_job(admin: Administrator, options: argparse.Namespace, rounds: int, steps: int) -> None:
    training = {**shape_of(options.bundle), "iterations": steps}
    settings = {"training": training, "per_round": 1, "over_selection": 1, "rounds": rounds, "keep": 1, "seed": 1}
    bundle = admin.upload_bundle(options.bundle)
    admin.post("/v1/jobs", {"name": "memory", "bundle": bundle, "settings": settings})


def done(admin: Administrator, wanted: int) -> int:
    """Rounds; ends where so many will never be."""
    job = admin.get("/v1/jobs/memory")
    if job["state"] != "running" and job["done"] < wanted:
        sys.exit(f"error: the job is {job['state']} after {job['done']} of {wanted} rounds: {job['reason']}")
    return job["done"]


def require_fitting(bundle: Path, data: Path, examples: int) -> None:
    """A client whose rows are no examples of the job would wait for another one for ever."""
    opened = Bundle.open(bundle, verify=False)
    model = opened.manifest.model
    kind = task_named(model.task)
    own = OwnData(read_rows(data, examples))
    own.count()
    if why := own.misfit(kind.fields, kind.first_check(model.labels), converses=kind.converses):
        known = f"; its labels are {', '.join(model.labels)}" if kind.has_classes else ""
        sys.exit(f"error: {data} does not fit {bundle}: {why}{known}")


def around_training(options: argparse.Namespace, folder: Path) -> bool:
    """Idle, a job of one round, and idle again."""
    with watching(options, folder, DEFAULT_RETRY) as (admin, watched):
        before = watched.waits(min(STARTED, options.settled))
        start_job(admin, options, rounds=1, steps=options.steps)
        watched.taken()
        while not done(admin, 1):
            watched.waits(0.3)
        training, after = watched.taken(), watched.waits(options.settled)
    print(f"  idle before the first task   {before:6.1f} MB  (target < {IDLE_MB:.0f})")
    print(f"  highest while training       {training:6.1f} MB  (target < {TRAINING_MB:.0f})")
    print(f"  idle after training          {after:6.1f} MB  (target < {IDLE_MB:.0f})", flush=True)
    return before < IDLE_MB and training < TRAINING_MB and after < IDLE_MB


def over_rounds(options: argparse.Namespace, folder: Path) -> bool:
    """Short rounds, one after the other."""
    sizes: list[float] = []
    with watching(options, folder, retry=0.1) as (admin, watched):
        start_job(admin, options, rounds=options.rounds, steps=1)
        for mark in range(options.every, options.rounds + 1, options.every):
            while (found := done(admin, mark)) < mark:
                watched.waits(0.1)
            sizes.append(watched.taken())
            print(f"  after {found:>4} rounds            {sizes[-1]:6.1f} MB", flush=True)
    drift = sizes[-1] / sizes[0] - 1
    print(f"  drift                        {drift:+6.1%}     (target within {DRIFT:.0%})")
    return abs(drift) <= DRIFT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--every", type=int, default=EVERY, help="rounds between two figures")
    parser.add_argument("--settled", type=float, default=SETTLED, help="seconds before memory of a wait is read")
    parser.add_argument("--steps", type=int, default=20, help="of the job of one round")
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--low-memory", action="store_true", help="the client holds one program at a time")
    parser.add_argument("--work", type=Path, help="a folder to keep logs in")
    options = parser.parse_args()
    if options.rounds < 2 * options.every:
        parser.error(f"--rounds must be at least {2 * options.every}")
    require_fitting(options.bundle, options.data / "train.jsonl", options.examples)
    print(f"{machine()}\n{options.bundle}, {shape_of(options.bundle)}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        small = around_training(options, folder / "around")
        flat = over_rounds(options, folder / "rounds")
    sys.exit(not (small and flat))


if __name__ == "__main__":
    main()
