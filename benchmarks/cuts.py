"""Measure the accuracy that a forward-only fleet reaches from each cut, by true gradients and along directions.

    python benchmarks/cuts.py --data DATA --out runs/cuts [--sets sst2,snli] [--adapters lora,bottleneck] [--blocks 1,2]

From each cut one run by true gradients, which is the bound of any number of directions there, and one for each number
of directions. Simulations of 100 clients, 12 a round, 4 steps of 8 texts, that go on where they stopped; blocks before
the cut are computed once for each text (`kept_prefix.py`). Passes are what a device's step costs, in forward passes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tables import LENGTHS, MODEL

EXACT, PLANNED = "exact", "plan"
"""Rows by true gradients, and along as many directions as the default plans for two passes."""


class Row(NamedTuple):
    """A run of the table."""

    data: str
    adapter: str
    """A method, and its rank behind a colon."""
    blocks: int
    """The number of adapted blocks, from the end."""
    directions: str
    """The number of directions, or `exact` or `plan`."""

    def folder(self, options: argparse.Namespace) -> Path:
        name = f"{self.adapter.replace(':', '-')}-{self.blocks}-{self.directions}"
        return options.out / f"{self.data}-{options.alpha:g}" / name / f"seed-{options.seed}"

    def command(self, options: argparse.Namespace) -> list[str]:
        method, _, rank = self.adapter.partition(":")
        way = ["--preset", "auto" if self.directions == EXACT else "forward"]
        if self.directions not in (EXACT, PLANNED):  # whatever it costs
            way += ["--directions", self.directions, "--set", "passes=1000"]
        return [
            sys.executable, str(Path(__file__).with_name("kept_prefix.py")), str(options.out / "kept" / self.data),
            "simulate", "--model", options.model, "--data", str(options.data / self.data), "--alpha",
            f"{options.alpha:g}", "--seed", str(options.seed), "--clients", str(options.clients), "--per-round",
            "12", "--iterations", "4", "--length",
            str(LENGTHS[self.data]), "--rounds", str(options.rounds), "--test-examples", "600", "--evaluate-every", "5",
            "--no-personal", "--arithmetic", "bfloat16", "--peft", method, "--rank", rank or "0", "--last-blocks",
            str(self.blocks), *way, "--out", str(self.folder(options)),
        ]  # fmt: skip


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """List the rows, true gradients first: they tell whether directions are worth a run."""
    for directions in options.directions.split(","):
        for data in options.sets.split(","):
            for adapter in options.adapters.split(","):
                for blocks in map(int, options.blocks.split(",")):
                    yield Row(data, adapter, blocks, directions)


def told(row: Row, options: argparse.Namespace) -> str:
    """Return the row's line of the table; run its simulation first where there is no result yet."""
    folder = row.folder(options)
    if not (folder / "summary.json").exists():
        subprocess.run(row.command(options), check=True, stdout=subprocess.DEVNULL)
    accuracy = json.loads((folder / "summary.json").read_text())["accuracy"]
    passes = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])["passes"]
    cells = row.data, row.adapter, row.blocks, row.directions, f"{passes:.2f}", f"{accuracy:.3f}"
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--out", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--model", default=MODEL, help="an encoder of BERT's kind")
    parser.add_argument("--sets", default="sst2,snli", help="data sets, between commas")
    parser.add_argument("--adapters", default="lora,bottleneck", help="methods, each with a rank behind a colon")
    parser.add_argument("--blocks", default="1,2", help="how many of the last blocks are adapted, between commas")
    parser.add_argument("--directions", default=f"{EXACT},{PLANNED}", help="numbers, or these words, between commas")
    parser.add_argument("--alpha", type=float, default=0.1, help="of the Dirichlet split")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| data | adapter | last blocks | directions | passes | accuracy |\n|---|---|---|---|---|---|")
    for row in rows(options):
        print(told(row, options), flush=True)


if __name__ == "__main__":
    main()
