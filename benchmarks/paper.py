"""The paper's comparison on small machines: every method, several data sets and seeds, as simulations that go on.

    python benchmarks/paper.py --data DATA --out runs --tables defaults [main central …] [--seeds 0 1 2] [--jobs 2]

DATA holds a folder for each data set (ag_news, sst2, snli, …), each with train.jsonl, test.jsonl and labels.json. Runs
that are done are left alone and stopped ones go on, so the same command resumes the sweep; after a change to a method,
remove its folders in `--out`. In the table of the defaults other methods have the rate by which a few short runs get
farthest, each time the same four factors of their usual one, measured on held-back training rows. `--list` prints the
commands instead. `spry report` then writes each table to `reports/` in `--out`; those of the project's own runs are in
benchmarks/results/. The tables:
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import rates
from tables import DESK, MODEL, TABLES, Run, kept_under

SPRY = [sys.executable, "-c", "from edge_client.commands.cli import main; main()"]
ASIDE = {"data": (DESK, 256), "held-back": ("test.jsonl", rates.HELD_BACK)}
"""The place and number of some training rows of each data set; those at the desk standardize task layers."""


def prepare(data: Path, out: Path, rows: str, name: str) -> None:
    """A copy of a data set: whole, with some training rows at the desk, or measured on some instead of the test's."""
    folder = out / rows / name
    if folder.exists():
        return
    train = data / name / "train.jsonl"
    if not train.exists():
        sys.exit(f"{train} does not exist; --data takes a folder with a folder for each data set")
    partial = folder.with_name(f".{name}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(data / name, partial)
    if rows in ASIDE:
        file, most = ASIDE[rows]
        _lay_aside(partial, file, most)
    partial.rename(folder)


def _lay_aside(folder: Path, file: str, most: int) -> None:
    rows = (folder / "train.jsonl").read_text().splitlines(keepends=True)
    aside = set(random.Random(0).sample(range(len(rows)), min(most, len(rows) // 10)))
    for target, chosen in ((file, aside), ("train.jsonl", set(range(len(rows))) - aside)):
        (folder / target).write_text("".join(row for number, row in enumerate(rows) if number in chosen))


def simulate(command: list[str], folder: Path, threads: int) -> str:
    if (folder / "summary.json").exists():
        return f"done before  {folder}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with folder.with_suffix(".log").open("a") as log:
        code = subprocess.run([*SPRY, *command], stdout=log, stderr=log, env=environment, check=False).returncode
    return f"{'done' if code == 0 else 'FAILED'}  {folder}"


def report(table: str, model: str, out: Path) -> None:
    runs = (replace(made, model=model) for made in TABLES[table]())
    rows = dict.fromkeys(made.folder(out, 0).parent for made in runs)
    kept = [str(folder) for folder in rows if folder.is_dir()]
    if not kept:
        print(f"{table}: no run has ended, so there is nothing to report")
        return
    target = out / "reports" / f"{kept_under(table, model)}.md"
    target.parent.mkdir(exist_ok=True)
    title = (TABLES[table].__doc__ or table).rstrip(".")
    subprocess.run([*SPRY, "report", *kept, "--title", title, "--out", str(target)], check=True)


def main() -> None:
    listed = "\n".join(f"    {name:<12} {made.__doc__}" for name, made in TABLES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--model", default=MODEL, help="as simulate takes it; another's runs and report bear its name")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument("--only", nargs="+", default=[""], help="runs whose folder has one of these in its path")
    parser.add_argument(
        "--arithmetic", default="bfloat16", choices=("float32", "bfloat16"), help="as simulate takes it"
    )
    parser.add_argument("--device", default="cpu", help="as simulate takes it; a GPU holds some 16 jobs")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    for table in options.tables:
        made = (replace(run, model=options.model) for run in TABLES[table]())
        runs = [run for run in made if _is_among(run.folder(options.out, 0), options.only)]
        needed = () if options.list else (*rates.trials(runs), *runs)
        for rows, name in dict.fromkeys((run.rows, run.data) for run in needed):
            prepare(options.data, options.out, rows, name)
        with ThreadPoolExecutor(options.jobs) as pool:
            sweep = Sweep(options.out, options.arithmetic, options.device, threads, pool, only_listed=options.list)
            for seed in options.seeds:  # one of everything before the next
                sweep.take(runs, seed)
        if not options.list:
            report(table, options.model, options.out)


def _is_among(folder: Path, parts: Sequence[str]) -> bool:
    return any(part in str(folder) for part in parts)


@dataclass(frozen=True)
class Sweep:
    """Runs on their way."""

    out: Path
    arithmetic: str
    device: str
    threads: int
    """The options of each run."""
    pool: ThreadPoolExecutor
    only_listed: bool

    def take(self, runs: Sequence[Run], seed: int) -> None:
        for told in self.pool.map(self._tuned, runs, repeat(seed)):
            print(told, flush=True)

    def _tuned(self, run: Run, seed: int) -> str:
        """A run, after the trials that tell its rate."""
        told = [self._one(trial, rates.SEED) for trial in rates.trials([run])]
        ready = rates.chosen(run, self.out)
        if ready is None:
            return "\n".join([*told, f"after these  {run.folder(self.out, seed)}"])
        return "\n".join([*told, self._one(ready, seed)])

    def _one(self, run: Run, seed: int) -> str:
        command = [*run.command(self.out, seed, self.arithmetic), "--device", self.device]
        if self.only_listed:
            return shlex.join(["spry", *command])
        return simulate(command, run.folder(self.out, seed), self.threads)


if __name__ == "__main__":
    main()
