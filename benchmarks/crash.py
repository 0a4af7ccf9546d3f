"""Is anything lost or counted twice when server and clients are killed?

    python benchmarks/crash.py --bundle bundle/ --data DATA/snips --kills 50
    python benchmarks/crash.py --bundle bundle/ --data DATA/snips --kills 20 --held-out 2000 --namespace   # as root

A job of 20 rounds whose server is killed with SIGKILL at random moments, clients at random too. Afterwards:

- every receipt that a client got is one accepted update of exactly one round, and every accepted update was averaged;
- no round is lost: all are done, each moved the weights by one version, and none stood for long after a kill: the lease
  of a killed closer is over after seconds. With `--held-out` a round's closing takes a while, so that many kills come
  in its midst; with `--namespace` every server is process 1 of the same host, as in a container;
- an uninterrupted run, in one process, of the same clients on the same tasks gives the same adapter bit for bit. It
  trains every update again with the client's own code and averages with the server's.

With `--buffer N` rounds take the updates that come, late ones too (schedule buffered), so many for each.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import time
from contextlib import closing as closed
from pathlib import Path
from typing import Any

import numpy as np
from fleet import NAMESPACE, TOKEN, Client, Server, machine, read_rows, shape_of, shares, write_rows
from pydantic import SecretStr
from sqlalchemy import select

from edge_client.data.examples import examples_for
from edge_client.data.sources import open_data
from edge_client.training.features import without_moments
from edge_client.training.round import client_round
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import Task
from server.cli.connection import NoAnswer
from server.jobs.job import Job
from server.rounds.selection.fleet import is_to_measure
from server.settings import Settings
from server.storage.jobs import find_job
from server.storage.schema.tables import devices, rounds, tasks
from server.storage.store import Store
from server.strategy.outliers import norms
from server.strategy.registry import strategy_of
from server.strategy.staleness import late_one
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution

CLIENTS = 4


def interrupted(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The run with the kills; what the clients were told is in their logs."""
    rows = read_rows(options.data / "train.jsonl", options.examples)
    before = NAMESPACE if options.namespace else ()
    server = Server(folder, *before, retry_seconds=0.3, tick_seconds=0.05)
    with server.administrator() as admin:
        bundle = admin.upload_bundle(options.bundle)
        training = {**shape_of(options.bundle), "iterations": options.steps}
        settings = {"training": training, "per_round": CLIENTS, "minimum": CLIENTS, "over_selection": 1,
                    "rounds": options.rounds, "deadline": 3600, "keep_updates": True, "seed": 1,
                    "aggregation": options.aggregation}  # fmt: skip
        if options.buffer:
            settings |= {"schedule": "buffered", "buffer": options.buffer, "minimum": options.buffer}
        if options.held_out:
            many = (rows * (options.held_out // len(rows) + 1))[: options.held_out]
            settings["held_out"] = admin.upload_held_out(write_rows(folder / "held-out.jsonl", many))
        admin.post("/v1/jobs", {"name": "crash", "bundle": bundle, "settings": settings})
        token = admin.post("/v1/tokens", {"uses": CLIENTS})["token"]
    parts = [write_rows(folder / f"client-{n}.jsonl", part) for n, part in enumerate(shares(rows, CLIENTS))]

    def start(number: int) -> Client:
        return Client(server, folder / f"client-{number}", parts[number], token, "--name", f"client-{number}")

    clients = [start(number) for number in range(CLIENTS)]
    kills = {"server": 0, "client": 0, "closing": 0}
    stood = [0.0]
    rng = random.Random(options.seed)
    started = time.monotonic()
    try:
        while not finished(server):
            time.sleep(rng.uniform(0.2, options.pause))
            if kills["server"] < options.kills:
                server.kill()
                kills["server"] += 1
                killed, claimed = time.monotonic(), closing(folder)
                kills["closing"] += claimed is not None
                if rng.random() < 0.5:
                    number = rng.randrange(CLIENTS)
                    clients[number].kill()
                    kills["client"] += 1
                    clients[number] = start(number)
                time.sleep(rng.uniform(0, 0.3))
                server.start()
                stood.append(0.0 if claimed is None else until_it_goes_on(folder, claimed, killed))
            for number, client in enumerate(clients):
                if not client.running and not finished(server):
                    client.check(f"client {number}")
    finally:
        for client in clients:
            client.kill()
        server.stop()
    return {"kills": kills, "seconds": time.monotonic() - started, "stood": max(stood), "parts": parts}


def finished(server: Server) -> bool:
    with server.administrator() as admin:
        try:
            return admin.get("/v1/jobs/crash")["state"] == "ended"
        except NoAnswer:  # a line that broke, unless the server ended by itself
            server.process.check("the server")
            return False


def closing(folder: Path) -> tuple[int, int] | None:
    """The round that a server closes, and which claim it is."""
    with closed(sqlite3.connect(folder / "data" / "spry.sqlite")) as database:
        return database.execute("SELECT number, fence FROM rounds WHERE state = 'closing'").fetchone()


def until_it_goes_on(folder: Path, claimed: tuple[int, int], killed: float) -> float:
    """Seconds from a kill until the round is closed, or somebody else closes it."""
    while closing(folder) == claimed:
        time.sleep(0.1)
    return time.monotonic() - killed


# --- what came of it -------------------------------------------------------------------------------------------------


def receipts(folder: Path) -> set[str]:
    """Tasks whose update a client has a receipt for."""
    uploaded: set[str] = set()
    for log in folder.glob("client-*/client.log"):
        for line in log.read_text(errors="replace").splitlines():
            event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if event.get("event") == "uploaded":
                uploaded.add(event["task"])
    return uploaded


def checked(store: Store, job: Job, folder: Path) -> dict[str, int]:
    with store.database.read() as connection:
        accepted = connection.execute(select(tasks).where(tasks.c.job == job.id, tasks.c.state == "accepted")).all()
        closed = connection.execute(select(rounds).where(rounds.c.job == job.id).order_by(rounds.c.number)).all()
    known = receipts(folder)
    late = sum(count for row in closed for age, count in (row.result or {}).get("stale", {}).items() if int(age))
    counted = sum(row.result["reports"] for row in closed if row.state == "done")
    return {
        "receipts": len(known),
        "receipts not accepted": len(known - {row.id for row in accepted}),
        "accepted": len(accepted),
        "of them late": late,
        "averaged": counted,
        "rounds done": sum(row.state == "done" for row in closed),
        "rounds failed": sum(row.state != "done" for row in closed),
        "versions": job.version,
    }


def repeated(store: Store, job: Job, parts: list[Path]) -> ServerState:
    """The same tasks, one after the other and without a kill."""
    bundle = store.bundles.open(job.bundle)
    manifest = bundle.manifest
    bench = TrainingSession(bundle, "onnx", threads=1)
    with store.database.read() as connection:
        names = {row.id: row.name for row in connection.execute(select(devices.c.id, devices.c.name))}
    data = {f"client-{n}": examples_for(open_data(p), bench.kind.check(manifest.model.labels)).split(0.1)[0]
            for n, p in enumerate(parts)}  # fmt: skip
    model = ServerState(0, store.models.initial(job))
    versions = {0: model}
    for number in range(1, job.round + 1):
        of_round = tasks.c.job == job.id, tasks.c.round == number, tasks.c.state == "accepted"
        with store.database.read() as connection:
            rows = connection.execute(select(tasks).where(*of_round).order_by(tasks.c.slot)).all()
        updates: list[Contribution] = []
        for row in rows:
            start = model if row.base is None else versions[row.base]
            task = Task(
                id=row.id, job=job.id, job_name=job.name, round=number, seed=row.seed, units=row.units, cut=row.cut,
                bundle=job.bundle, runtime=row.runtime, version=start.version, iteration=0, seconds=0,
                training=job.settings.training, optimizers=job.settings.optimizers, batch=row.batch,
                measure=is_to_measure(store, job, number, row.slot, start.version),
            )  # fmt: skip
            own_data = bench.data(task, data[names[row.device]])
            update = client_round(task, bench.model(task), start.weights, own_data)
            far = norms(without_moments(update.tensors), start.weights, manifest.head_names, manifest.units)
            own = Contribution(
                row.id, tuple(row.units), task.training, far, update.report, lambda sent=update.tensors: sent
            )
            updates.append(own if row.base is None else late_one(own, row.base, model, versions.__getitem__))
        model = strategy_of(job.settings).aggregate(model, updates, RoundContext(job.settings, manifest)).model
        versions[model.version] = model
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4, help="of each client in a round")
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--pause", type=float, default=2.0, help="longest seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aggregation", default="mean", help="how a unit's holders are averaged")
    parser.add_argument("--buffer", type=int, default=0, help="rounds take so many updates, late ones too")
    parser.add_argument("--held-out", type=int, default=0, help="examples that every round is measured on")
    parser.add_argument("--namespace", action="store_true", help="each server is process 1 of this host; needs root")
    parser.add_argument("--longest", type=float, default=15.0, help="seconds that a round may stand after a kill")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ran = interrupted(options, folder)
        store = Store(Settings(data_dir=folder / "data", admin_token=SecretStr(TOKEN)))
        job = find_job(store, "crash")
        outcome = checked(store, job, folder)
        again = repeated(store, job, ran["parts"])
        weights = store.models.load(job, job.version).weights
        same = all(np.array_equal(weights[name], value) for name, value in again.weights.items())
    print(machine())
    kills = ran["kills"]
    print(f"{kills['server']} kills of the server and {kills['client']} of clients in {ran['seconds']:.0f} s")
    print(f"  while a round was closed  {kills['closing']}: it went on within {ran['stood']:.1f} s")
    for name, value in outcome.items():
        print(f"  {name:<24}{value}")
    print(f"  the adapter is that of an uninterrupted run, bit for bit: {same}")
    wanted = options.buffer or CLIENTS
    good = (
        same
        and not outcome["receipts not accepted"]
        and outcome["accepted"] == outcome["averaged"] >= options.rounds * wanted
        and (options.buffer or outcome["averaged"] == options.rounds * wanted)
        and outcome["rounds done"] == outcome["versions"] == options.rounds
        and not outcome["rounds failed"]
        and kills["server"] >= options.kills
        and ran["stood"] <= options.longest
    )
    sys.exit(not good)


if __name__ == "__main__":
    main()
