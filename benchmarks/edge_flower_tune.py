"""Measure a client of EdgeFlowerTune's cell by our steps, beside LoRA by backpropagation.

    python benchmarks/edge_flower_tune.py --model SOURCE --data DATA/sst2 --work runs/edge-flower-tune

The cell of its tables (arXiv 2605.08636): LoRA of rank 8 and alpha 32 on q, k, v and o in all blocks, batches of 8 x 64
tokens, 8 clients. Its data are questions whose answer is a word; BoolQ and QNLI are not at hand here, so a row's label
is the word that follows its text, and what is printed is how many tokens of held-out answers are right.

Cost is of one step on this machine, on one thread: exact, mixed and forward steps of an int8 bundle by ONNX Runtime,
which is exported into `--work` unless `--bundle` names one, and eager PyTorch in float32. RSS is of a process that has
loaded what the step takes, before it; the high-water mark is VmHWM after it. Bytes are those of a client's round.
Learning is the simulator's, with true weights and the same adapter: devices that all hold exact steps, that all go back
through one block and estimate the rest, that only go forward, by what a job starts from; and FedAvg by AdamW at
EdgeFlowerTune's rate. What its tables have beside these is missing: power, and phones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fleet import SPRY, machine, read_rows, write_rows

from edge_client.bundle.chain import Chain
from edge_client.bundle.folder import Bundle
from edge_client.commands.options.adapter import AdapterOptions
from export.check.baselines import BACKPROP, eager
from server.simulation.plan import Plan, plan_for
from server.simulation.quiet import quiet_libraries
from server.simulation.run.run import simulate

CLIENTS, BATCH, LENGTH, RATE = 8, 8, 64, 2e-4
TARGETS = "q_proj", "k_proj", "v_proj", "o_proj"
ADAPTER = AdapterOptions(rank=8, alpha=32.0, targets=TARGETS, last_blocks=0)
EAGER = "LoRA by backprop"
STEPS = {"exact": "exact", "mixed": "mixed", "forward": "dual"}
"""Name the kinds of fleet, by what their devices do."""
Figures = dict[str, float | str]


def exported(options: argparse.Namespace) -> Path:
    """The cell's bundle."""
    out = options.work / "bundle"
    if not out.exists():
        words = (
            "export", options.model, "--out", out, "--task", "causal-lm", "--rank", ADAPTER.rank,
            "--alpha", ADAPTER.alpha, "--target-modules", ",".join(TARGETS), "--quantize", "int8", "--target", "onnx",
            "--batch", BATCH, "--seq", LENGTH, "--no-measure", "--verify", options.verify,
        )  # fmt: skip
        subprocess.run([*SPRY, *map(str, words)], check=True, stdout=sys.stderr)
    return out


def costs(bundle: Path, rounds: int) -> dict[str, Figures]:
    """A step of each kind through all blocks, in seconds and MB."""
    opened = Bundle.open(bundle, verify=False)
    manifest = opened.manifest
    first = Chain(manifest, "onnx", *manifest.shapes[0], manifest.directions[0]).starts()[0]
    words = (
        "bench",
        "step",
        bundle,
        "--runtime",
        "onnx",
        "--cuts",
        first,
        "--rounds",
        rounds,
        "--no-baselines",
        "--json",
    )
    done = subprocess.run(
        [*SPRY, *map(str, words), "--no-baselines", "--json"], check=True, stdout=subprocess.PIPE, text=True
    )
    rows = {row["step"]: row for row in json.loads(done.stdout)["rows"]}
    rows[EAGER] = eager(BACKPROP, bundle, *manifest.shapes[0], rounds, 1)
    names = {"forward pass alone": "forward", **STEPS, EAGER: EAGER}
    return {name: cost(rows[step]) for name, step in names.items() if step in rows}


def cost(row: Mapping[str, Any]) -> Figures:
    before = row["rss_mb"] - max(row["peak_mb"], row["peak_mapped_mb"])
    return {"seconds": row["cpu_ms"] / 1e3, "rss": before, "highest": row["rss_mb"]}


# --- learning --------------------------------------------------------------------------------------------------------


def answers(options: argparse.Namespace) -> Path:
    """A folder with rows whose answer is a word."""
    folder = options.work / "rows"
    names = json.loads((options.data / "labels.json").read_text())
    for name, count in (("train", CLIENTS * options.examples), ("test", options.held_out)):
        rows = [
            {"prompt": f"{row['text'].strip()}\nThis is", "completion": f" {names[row['label']]}"}
            for row in read_rows(options.data / f"{name}.jsonl", count)
        ]
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def planned(options: argparse.Namespace, step: str, rows: Path) -> Plan:
    """A fleet that can hold exact steps, one that can go back through a block and estimates the rest, or another."""
    training: dict[str, Any] = {"batch": BATCH, "length": LENGTH, "iterations": options.steps}
    training |= {"forward": {"estimator": "forward"}, EAGER: {"learning_rate": RATE}}.get(step, {})
    sizes = {"rounds": options.rounds, "per_round": CLIENTS, "evaluate_every": options.rounds}
    return plan_for(
        method="fedavg" if step == EAGER else "spry", preset=None, model=options.model, data=str(rows),
        task="causal-lm", settings={**sizes, "training": training}, adapter=asdict(ADAPTER), seed=0, clients=CLIENTS,
        alpha=1.0, by="", personal=False, able=0.0 if step == "mixed" else 1.0, arithmetic=options.arithmetic,
    )  # fmt: skip


def learned(options: argparse.Namespace) -> dict[str, Figures]:
    """Measure the final scores of each fleet, and the bytes of a client's round."""
    rows, found = answers(options), dict[str, Figures]()
    for step in (*STEPS, EAGER):
        folder = options.work / step.replace(" ", "-")
        simulate(planned(options, step, rows), folder, lambda line, step=step: show(step, line))
        last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
        sent = {name: last[f"bytes_{name}"] / last["clients"] / 1e6 for name in ("up", "down")}
        found[step] = {"accuracy": last["accuracy"], "loss": last["test_loss"], **sent}
    return found


def show(step: str, line: Mapping[str, Any]) -> None:
    print(f"  {step}, round {line['round']}: loss {line['loss']:.4f}", file=sys.stderr, flush=True)


COLUMNS = {
    "seconds": ("CPU s a step", ".2f"), "rss": ("RSS, MB", ".0f"), "highest": ("highest, MB", ".0f"),
    "up": ("up, MB", ".2f"), "down": ("down, MB", ".2f"), "accuracy": ("accuracy", ".3f"), "loss": ("loss", ".3f"),
}  # fmt: skip


def told(rows: Mapping[str, Figures]) -> str:
    lines = ["| | " + " | ".join(title for title, _ in COLUMNS.values()) + " |", "|---|" + "---|" * len(COLUMNS)]
    for name, figures in rows.items():
        cells = (format(figures[key], form) if key in figures else "" for key, (_, form) in COLUMNS.items())
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "Not measured: power, and phones."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a pretrained language model")
    parser.add_argument("--data", type=Path, required=True, help="train.jsonl, test.jsonl (text, label), labels.json")
    parser.add_argument("--work", type=Path, required=True, help="what was made; the same command goes on")
    parser.add_argument("--bundle", type=Path, help="one of the cell, int8 for ONNX Runtime, that is there")
    parser.add_argument("--verify", default="auto", help="of the export")
    parser.add_argument("--repeats", type=int, default=3, help="counted steps of a kind")
    parser.add_argument("--examples", type=int, default=100, help="rows of each client")
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="of a client in a round")
    parser.add_argument("--arithmetic", default="float32", help="of the simulator: or bfloat16")
    parser.add_argument("--part", choices=["costs", "learning"], help="leave the other out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    quiet_libraries()
    rows: dict[str, Figures] = (
        {} if options.part == "learning" else costs(options.bundle or exported(options), options.repeats)
    )
    for name, figures in (learned(options) if options.part != "costs" else {}).items():
        rows[name] = rows.get(name, {}) | figures
    print(json.dumps({"machine": machine(), "rows": rows}) if options.json else f"{machine()}\n{told(rows)}")


if __name__ == "__main__":
    main()
