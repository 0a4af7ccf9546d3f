"""The paper's comparison on small machines: every method, several data sets and seeds, as simulations that go on.

    python benchmarks/paper.py --data DATA --out runs [--tables main free longer …] [--seeds 0 1 2] [--jobs 2]

DATA holds a folder for each data set (ag_news, sst2, snli, …), each with train.jsonl, test.jsonl and labels.json. Runs
that are done are left alone and stopped ones go on, so the same command resumes the sweep. What a finished run found
is kept in benchmarks/results/runs/, so a sweep goes on from a clone on another machine too; after a change to a method,
remove its folders there. `--list` prints the commands instead. When a table's runs are done, `spry report` writes it to
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tables import DESK, TABLES

SPRY = [sys.executable, "-c", "from edge_client.commands.cli import main; main()"]
RESULTS = Path(__file__).parent / "results"
RECORDS = RESULTS / "runs"
"""What finished runs found, without their weights."""
AT_THE_DESK = 256
"""Examples of each data set: task layers are standardized and adapters aligned by them."""


def prepare(data: Path, out: Path, name: str) -> None:
    """A copy of a data set of which some training rows lie at the desk instead of with clients."""
    folder = out / "data" / name
    if folder.exists():
        return
    train = data / name / "train.jsonl"
    if not train.exists():
        sys.exit(f"{train} does not exist; --data takes a folder with a folder for each data set")
    partial = folder.with_name(f".{name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    rows = train.read_text().splitlines(keepends=True)
    desk = set(random.Random(0).sample(range(len(rows)), min(AT_THE_DESK, len(rows) // 10)))
    for file, chosen in ((DESK, desk), ("train.jsonl", set(range(len(rows))) - desk)):
        (partial / file).write_text("".join(row for number, row in enumerate(rows) if number in chosen))
    for file in ("test.jsonl", "labels.json"):
        if (data / name / file).exists():
            shutil.copy(data / name / file, partial)
    partial.rename(folder)


def run(command: list[str], folder: Path, record: Path, threads: int) -> str:
    if (record / "summary.json").exists():
        return f"done before  {record}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with folder.with_suffix(".log").open("a") as log:
        code = subprocess.run([*SPRY, *command], stdout=log, stderr=log, env=environment, check=False).returncode
    if code == 0:
        keep(folder, record)
    return f"{'done' if code == 0 else 'FAILED'}  {folder}"


def keep(folder: Path, record: Path) -> None:
    """What `spry report` reads of a run; the summary last, as it says that the rest is there."""
    record.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "rounds.jsonl", "summary.json"):
        shutil.copy(folder / name, record)


def report(table: str) -> None:
    rows = dict.fromkeys(made.folder(RECORDS, 0).parent for made in TABLES[table]())
    kept = [str(folder) for folder in rows if folder.is_dir()]
    if not kept:
        print(f"{table}: no run has ended, so there is nothing to report")
        return
    target = RESULTS / f"{table}.md"
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
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument("--only", default="", help="runs whose folder has this in its path")
    parser.add_argument(
        "--arithmetic", default="bfloat16", choices=("float32", "bfloat16"), help="as simulate takes it"
    )
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    for table in options.tables:
        for name in {made.data for made in TABLES[table]()}:
            prepare(options.data, options.out, name)
        work = [
            (
                made.command(options.out, seed, options.arithmetic),
                made.folder(options.out, seed),
                made.folder(RECORDS, seed),
            )
            for seed in options.seeds  # one seed of everything before the next
            for made in TABLES[table]()
            if options.only in str(made.folder(options.out, seed))
        ]
        if options.list:
            print("\n".join(shlex.join(["spry", *command]) for command, _, _ in work))
            continue
        with ThreadPoolExecutor(options.jobs) as pool:
            for told in pool.map(lambda one: run(*one, threads), work):
                print(told, flush=True)
        report(table)


if __name__ == "__main__":
    main()
